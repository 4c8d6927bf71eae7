// Both programs around an operator: what is near it is drawn, everything can be searched.
const held = document.getElementById('graph-data');
if (held) {
  const data = JSON.parse(held.textContent);
  const GIVEN = 4;
  const CLASSES = ['plain', 'failing', 'strange', 'meeting', 'given'];
  const [OP, MODULE, SOURCE, WHO, RESULT, SHAPE, STATUS, PARTNER, INPUTS] = [...Array(9).keys()];
  const WIDTH = 172, HEIGHT = 58, GAP = 14, LEVEL = 88, MOST = 34, HUB = 8;
  const NAMES = ['single', 'parallel'];
  const sides = {};
  for (const name of NAMES) {
    const { words, nodes } = data[name];
    const readers = nodes.map(() => []);
    nodes.forEach((node, i) => node[INPUTS].forEach(j => readers[j].push(i)));
    const back = words.map(w => w.startsWith('backward of '));
    sides[name] = { words, nodes, readers, back, lower: words.map(w => w.toLowerCase()), focus: -1 };
  }
  const depth = document.getElementById('graph-depth');
  const space = document.getElementById('graph-space').namespaceURI;
  const svg = (tag, attrs, text) => {
    const made = document.createElementNS(space, tag);
    for (const key in attrs) made.setAttribute(key, attrs[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + '…' : text;
  const tail = (text, most) => text.length > most ? '…' + text.slice(1 - most) : text;

  // What is near the focus: inputs and readers by turns, breadth first, few of what is read often,
  // and of the backward pass nothing around a forward operator.
  function near(side, focus, steps) {
    const kept = new Set([focus]), back = i => side.back[side.nodes[i][OP]];
    const fits = j => back(j) === back(focus) || side.nodes[focus][INPUTS].includes(j);
    let edge = [focus];
    for (let step = 0; step < steps && kept.size < MOST; step++) {
      const next = [];
      for (const i of edge) {
        const around = [...side.nodes[i][INPUTS].slice(0, HUB)];
        if (side.nodes[i][STATUS] !== GIVEN || i === focus) around.push(...side.readers[i].slice(0, HUB));
        for (const j of around) if (!kept.has(j) && kept.size < MOST && fits(j)) { kept.add(j); next.push(j); }
      }
      edge = next;
    }
    return [...kept].sort((a, b) => a - b);
  }

  // Levels by what is read, inputs right above their first reader; within a level by neighbours.
  function placed(side, kept) {
    const inside = new Set(kept), level = new Map(), column = new Map();
    for (const i of kept)
      level.set(i, 1 + Math.max(-1, ...side.nodes[i][INPUTS].filter(j => inside.has(j)).map(j => level.get(j))));
    for (const i of [...kept].reverse()) {
      const below = side.readers[i].filter(j => inside.has(j)).map(j => level.get(j));
      if (below.length) level.set(i, Math.min(...below) - 1);
    }
    const lowest = Math.min(...level.values());
    const rows = [];
    for (const i of kept) {
      const row = level.get(i) - lowest;
      level.set(i, row);
      (rows[row] = rows[row] || []).push(i);
    }
    const mean = list => list.reduce((a, b) => a + b, 0) / list.length;
    const spread = () => rows.forEach(row => row && row.forEach((i, n) => column.set(i, n - (row.length - 1) / 2)));
    spread();
    for (let round = 0; round < 4; round++) {
      const down = round % 2 === 0;
      for (const row of down ? rows : [...rows].reverse()) {
        if (!row) continue;
        const wish = new Map(row.map(i => {
          const by = (down ? side.nodes[i][INPUTS] : side.readers[i]).filter(j => inside.has(j)).map(j => column.get(j));
          return [i, by.length ? mean(by) : column.get(i)];
        }));
        row.sort((a, b) => wish.get(a) - wish.get(b));
        row.forEach((i, n) => column.set(i, n - (row.length - 1) / 2));
      }
    }
    const widest = Math.max(...rows.map(row => row ? row.length : 0));
    const at = new Map();
    for (const i of kept) at.set(i, [(column.get(i) + (widest - 1) / 2) * (WIDTH + GAP) + 4, level.get(i) * LEVEL + 4]);
    return { at, width: widest * (WIDTH + GAP), height: (rows.length - 1) * LEVEL + HEIGHT + 10 };
  }

  // The same number on both sides: the same value.
  function badges(kept) {
    const shown = new Set(kept.single), found = { single: new Map(), parallel: new Map() };
    for (const i of kept.parallel) {
      const other = sides.parallel.nodes[i][PARTNER];
      if (!shown.has(other)) continue;
      if (!found.single.has(other)) found.single.set(other, found.single.size + 1);
      found.parallel.set(i, found.single.get(other));
    }
    return found;
  }

  function draw() {
    const kept = {};
    for (const name of NAMES)
      kept[name] = sides[name].focus < 0 ? [] : near(sides[name], sides[name].focus, Number(depth.value));
    const marks = badges(kept);
    for (const name of NAMES) picture(name, kept[name], marks[name]);
  }

  function picture(name, kept, marks) {
    const side = sides[name], box = document.getElementById('graph-' + name);
    box.textContent = '';
    const about = document.getElementById('graph-about-' + name);
    about.textContent = '';
    if (!kept.length) { box.textContent = 'No operator here: choose one below.'; return; }
    const { at, width, height } = placed(side, kept);
    const root = svg('svg', { width, height, role: 'img', 'aria-label': name + ' graph' });
    for (const i of kept) for (const j of side.nodes[i][INPUTS]) {
      if (!at.has(j)) continue;
      const [x, y] = at.get(j), [u, v] = at.get(i);
      const [a, b, c, d] = [x + WIDTH / 2, y + HEIGHT, u + WIDTH / 2, v];
      root.append(svg('path', { d: `M${a},${b} C${a},${b + 22} ${c},${d - 22} ${c},${d}`, class: 'wire' }));
    }
    for (const i of kept) {
      const node = side.nodes[i], word = k => side.words[node[k]], [x, y] = at.get(i);
      const group = svg('g', { class: 'node ' + CLASSES[node[STATUS]] + (i === side.focus ? ' focus' : ''),
        transform: `translate(${x},${y})`, tabindex: 0, role: 'button', 'aria-label': word(OP) });
      group.append(svg('rect', { width: WIDTH, height: HEIGHT, rx: 5 }));
      group.append(svg('text', { x: 8, y: 18, class: 'op' }, cut(word(OP), marks.has(i) ? 20 : 24)));
      const lines = [node[STATUS] === GIVEN ? tail(word(MODULE), 26) : '', word(SHAPE), name === 'parallel' ? word(RESULT) : ''];
      lines.filter(Boolean).slice(0, 2).forEach((line, n) =>
        group.append(svg('text', { x: 8, y: 34 + 15 * n, class: 'more' }, cut(line, n ? 24 : 26))));
      const hidden = node[INPUTS].length + side.readers[i].length
        - node[INPUTS].filter(j => at.has(j)).length - side.readers[i].filter(j => at.has(j)).length;
      if (hidden) group.append(svg('text', { x: WIDTH - 6, y: HEIGHT - 4, class: 'hidden' }, '+' + hidden));
      if (marks.has(i)) {
        group.append(svg('circle', { cx: WIDTH - 13, cy: 13, r: 9 }));
        group.append(svg('text', { x: WIDTH - 13, y: 17, class: 'badge' }, marks.get(i)));
      }
      group.append(svg('title', {}, [word(OP), word(MODULE), word(SOURCE), word(WHO), word(RESULT), word(SHAPE)].filter(Boolean).join('\n')));
      const choose = () => focus(name, i);
      group.addEventListener('click', choose);
      group.addEventListener('keydown', e => { if (e.key === 'Enter') choose(); });
      root.append(group);
    }
    box.append(root);
    const [x, y] = at.get(side.focus);
    box.scrollLeft = x + WIDTH / 2 - box.clientWidth / 2;
    box.scrollTop = y + HEIGHT / 2 - box.clientHeight / 2;
    const node = side.nodes[side.focus];
    for (const [k, title] of [[OP, 'operator'], [MODULE, 'module'], [SOURCE, 'source'], [WHO, 'runs on'], [SHAPE, 'shape'], [RESULT, 'its result is']]) {
      const text = side.words[node[k]];
      if (!text || (k === RESULT && name === 'single')) continue;
      const dt = document.createElement('dt'), dd = document.createElement('dd');
      dt.textContent = title; dd.textContent = text; about.append(dt, dd);
    }
  }

  // The other side follows to the partner, or to that of the nearest thing that is read.
  function focus(name, i) {
    const side = sides[name], other = sides[name === 'single' ? 'parallel' : 'single'];
    side.focus = i;
    let edge = [i];
    for (let step = 0; step < 12 && edge.length; step++) {
      const partner = edge.map(j => side.nodes[j][PARTNER]).find(j => j >= 0);
      if (partner !== undefined) { other.focus = partner; break; }
      edge = edge.flatMap(j => side.nodes[j][INPUTS]).slice(0, 64);
    }
    draw();
  }

  function show(finding) {
    sides.parallel.focus = finding.parallel;
    sides.single.focus = finding.single;
    if (finding.single < 0) focus('parallel', finding.parallel); else draw();
  }

  const buttons = document.getElementById('graph-findings');
  data.findings.forEach((finding, n) => {
    const button = document.createElement('button');
    button.textContent = 'finding ' + (n + 1);
    button.title = finding.text;
    button.addEventListener('click', () => show(finding));
    buttons.append(button);
  });
  depth.addEventListener('input', draw);

  const search = document.getElementById('graph-search'), hits = document.getElementById('graph-hits');
  search.addEventListener('input', () => {
    hits.textContent = '';
    let text = search.value.toLowerCase();
    const rank = /\brank\s*(\d+)\b/.exec(text);
    if (rank) text = text.replace(rank[0], ' ');
    const asked = text.split(/\s+/).filter(Boolean);
    if (!asked.length && !rank) return;
    let count = 0;
    for (const name of rank ? ['parallel'] : NAMES) {
      const side = sides[name];
      const fits = asked.map(w => side.lower.map(x => x.includes(w)));
      const on = rank && side.words.map(w => (data.ranks[w] || []).includes(Number(rank[1])));
      side.nodes.forEach((node, i) => {
        if (rank && !on[node[WHO]]) return;
        if (!fits.every(f => f[node[OP]] || f[node[MODULE]] || f[node[SOURCE]] || f[node[RESULT]])) return;
        if (++count > 60) return;
        const item = document.createElement('li'), link = document.createElement('button');
        link.className = CLASSES[node[STATUS]];
        link.textContent = [side.words[node[OP]], tail(side.words[node[MODULE]], 40), tail(side.words[node[SOURCE]], 40), side.words[node[WHO]]].filter(Boolean).join(' · ');
        link.addEventListener('click', () => focus(name, i));
        item.append(link);
        hits.append(item);
      });
    }
    const sum = document.createElement('li');
    sum.className = 'soft';
    sum.textContent = count > 60 ? `${count - 60} more` : count ? '' : 'nothing';
    if (sum.textContent) hits.append(sum);
  });

  const first = data.findings[0];
  if (first) show(first); else focus('parallel', sides.parallel.nodes.length - 1);
}
