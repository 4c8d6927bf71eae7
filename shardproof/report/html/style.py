"""How the page looks, and the little that it does."""

from __future__ import annotations

from typing import Final

CSS: Final = """
:root { --ink:#1c2530; --soft:#5b6775; --line:#d9dfe6; --back:#f5f7f9; --card:#fff;
  --good:#177245; --bad:#b3261e; --warn:#8a5a00; --blue:#3f72af; --orange:#d9822b;
  --purple:#7a4fa3; --grey:#a9b3bf; }
* { box-sizing:border-box; }
body { margin:0; color:var(--ink); background:var(--back);
  font:14px/1.45 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif; }
main { max-width:1320px; margin:0 auto; padding:0 20px 40px; }
header { padding:14px 20px; color:#fff; background:var(--warn); }
header.proved { background:var(--good); } header.refuted { background:var(--bad); }
header div { max-width:1280px; margin:0 auto; display:flex; gap:18px; align-items:baseline;
  flex-wrap:wrap; }
header b { font-size:26px; text-transform:uppercase; letter-spacing:.04em; }
header .plan { margin-left:auto; opacity:.9; overflow-wrap:anywhere; font-size:13px; }
.card p { margin:4px 0; }
h2 { font-size:17px; margin:26px 0 8px; } h3 { font-size:14px; margin:12px 0 4px; }
.card { background:var(--card); border:1px solid var(--line); border-radius:6px;
  padding:12px 14px; margin:10px 0; overflow-x:auto; }
.three { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(270px,100%),1fr)); gap:12px;
  margin-top:14px; }
.three .card { margin:0; } .three h3 { margin:0 0 6px; color:var(--soft); font-size:12px;
  text-transform:uppercase; letter-spacing:.05em; }
.three p { margin:0 0 6px; } .big { font-size:16px; font-weight:600; overflow-wrap:anywhere; }
.two { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr));
  gap:12px; } .two > div { min-width:0; }
dl { display:grid; grid-template-columns:max-content 1fr; gap:2px 12px; margin:0; }
dt { color:var(--soft); } dd { margin:0; overflow-wrap:anywhere; }
table { border-collapse:collapse; width:100%; } th { text-align:left; color:var(--soft);
  font-weight:500; } td,th { padding:2px 8px 2px 0; vertical-align:top; }
td.n,th.n { text-align:right; font-variant-numeric:tabular-nums; }
code,.mono { font-family:ui-monospace,Menlo,Consolas,monospace; font-size:12.5px; }
.soft { color:var(--soft); } .good { color:var(--good); } .bad { color:var(--bad); }
.tag { display:inline-block; padding:0 7px; border-radius:9px; font-size:12px; color:#fff;
  background:var(--grey); white-space:nowrap; } .tag.failing,.tag.refuted { background:var(--bad); }
.tag.proved { background:var(--good); } .tag.open { background:var(--warn); }
.stage { display:grid; grid-template-columns:minmax(0,260px) 1fr; gap:6px; align-items:center;
  margin:3px 0; } .boxes { display:flex; gap:6px; flex-wrap:wrap; align-items:center; }
.stage .holds { color:var(--soft); font-size:12.5px; overflow-wrap:anywhere; }
.box { border:1px solid var(--blue); background:#e8f0f9; border-radius:4px; padding:2px 8px;
  min-width:44px; text-align:center; font-size:12px; }
.box.failing { border:2px solid var(--bad); background:#fbe9e7; color:var(--bad);
  font-weight:700; }
.bar { display:flex; height:10px; border-radius:3px; overflow:hidden; background:#eceff3;
  min-width:70px; }
.replicated { background:var(--blue); } .sharded { background:var(--orange); }
.partial { background:var(--purple); } .other { background:#d98880; }
.unknown { background:var(--grey); }
.legend span { display:inline-flex; align-items:center; gap:5px; margin-right:14px; }
.legend i { display:inline-block; width:11px; height:11px; border-radius:2px; }
.strip { display:flex; gap:1px; align-items:flex-end; }
.strip > div { flex:1 1 0; min-width:1px; max-width:60px; }
.strip .col { height:26px; display:flex; flex-direction:column; border-radius:2px;
  overflow:hidden; background:#eceff3; }
.strip .failing { outline:2px solid var(--bad); }
.strip .name { font-size:10px; color:var(--soft); overflow:hidden; white-space:nowrap;
  text-overflow:ellipsis; }
.grid { border-collapse:separate; border-spacing:2px; width:auto; }
.grid td { padding:3px 6px; font:11.5px ui-monospace,Menlo,Consolas,monospace; text-align:right;
  background:#edf5ef; border-radius:3px; white-space:nowrap; }
.grid td.off { background:#fbdedb; } .grid td.off b { color:var(--bad); }
.shards { display:flex; gap:14px; flex-wrap:wrap; }
.shard { border:1px solid var(--line); border-left:4px solid var(--good); border-radius:4px;
  padding:6px 8px; } .shard.off { border-left-color:var(--bad); }
details > summary { cursor:pointer; } details.layer { border-top:1px solid var(--line);
  padding:5px 0; } details.layer > summary { display:grid; align-items:center; gap:10px;
  grid-template-columns:minmax(200px,2fr) 80px 110px 110px repeat(2,minmax(90px,1fr)); }
input[type=search] { width:100%; padding:7px 10px; font:inherit; border:1px solid var(--line);
  border-radius:5px; }
.F { fill:#cfe0f3; background:#cfe0f3; } .B { fill:#f7ddc0; background:#f7ddc0; }
.R { fill:#e2d4ef; background:#e2d4ef; } rect.failing { stroke:var(--bad); stroke-width:2.5; }
svg text { font:11px system-ui,sans-serif; } ul { margin:4px 0; padding-left:20px; }
.card a { color:var(--blue); } svg { max-width:none; } svg text { fill:var(--ink); }
rect + text { fill:#1c2530; }
@media (max-width:700px) { main { padding:0 10px 30px; } header { padding:10px; }
  header .plan { margin-left:0; } header b { font-size:20px; }
  .stage { grid-template-columns:1fr; } td { overflow-wrap:anywhere; }
  details.layer > summary { grid-template-columns:1fr max-content; } }
@media (prefers-color-scheme:dark) {
  :root { --ink:#e4e9ef; --soft:#9aa7b5; --line:#343e4a; --back:#14181d; --card:#1c2229;
    --good:#4cbf8a; --bad:#ff7b72; --warn:#d9a441; --blue:#6ba3e0; --grey:#66717d; }
  header, .tag { color:#fff; } header.proved { background:#14583a; }
  header.refuted { background:#8c1f19; } .tag { background:#5a6570; }
  .tag.failing,.tag.refuted { background:#a3271f; } .tag.proved { background:#14683f; }
  .box { background:#1f2c3a; } .box.failing { background:#3d1d1b; }
  .grid td { background:#1b2b23; } .grid td.off { background:#41201e; }
  .bar, .strip .col { background:#2a323b; } input[type=search] { background:var(--back);
    color:var(--ink); } }
@media print { body { background:#fff; font-size:12px; } main { padding:0; }
  .two { display:block; } .three { grid-template-columns:repeat(3,minmax(0,1fr)); }
  .card { break-inside:avoid; overflow:visible; } #layers, #findings .card { break-inside:auto; }
  h2, h3 { break-after:avoid; } tr, .shard, li { break-inside:avoid; } #layers p { display:none; }
  details.layer > summary { grid-template-columns:minmax(90px,2fr) 76px 92px 92px
    repeat(2,minmax(40px,1fr)); }
  header { print-color-adjust:exact; -webkit-print-color-adjust:exact; } .bar, .strip, .box,
  .grid td, .legend i { print-color-adjust:exact; -webkit-print-color-adjust:exact; } }
"""

SCRIPT: Final = """
const box = document.getElementById('search');
if (box) {
  const rows = [...document.querySelectorAll('details.layer')];
  box.addEventListener('input', () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = (row.dataset.names + ' ' + row.textContent).toLowerCase();
      const hit = words.every(word => text.includes(word));
      row.hidden = !hit; shown += hit;
    }
    document.getElementById('hits').textContent = words.length ? shown + ' of ' + rows.length : '';
  });
}
"""
