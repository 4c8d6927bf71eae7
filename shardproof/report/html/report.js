const box = document.getElementById('search');
if (box) {
  const rows = [...document.querySelectorAll('details.layer')];
  box.addEventListener('input', () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = (row.dataset.names + ' ' + row.textContent).toLowerCase();
      const hit = words.every(word => text.includes(word));
      row.hidden = !hit; shown += hit;
    }
    document.getElementById('hits').textContent = words.length ? shown + ' of ' + rows.length : '';
  });
}
