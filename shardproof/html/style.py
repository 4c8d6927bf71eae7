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
.three { display:grid; grid-template-columns:repeat(auto-fit,minmax(270px,1fr)); gap:12px;
  margin-top:14px; }
.three .card { margin:0; } .three h3 { margin:0 0 6px; color:var(--soft); font-size:12px;
  text-transform:uppercase; letter-spacing:.05em; }
.three p { margin:0 0 6px; } .big { font-size:16px; font-weight:600; overflow-wrap:anywhere; }
.two { display:grid; grid-template-columns:repeat(auto-fit,minmax(430px,1fr)); gap:12px; }
dl { display:grid; grid-template-columns:max-content 1fr; gap:2px 12px; margin:0; }
dt { color:var(--soft); } dd { margin:0; overflow-wrap:anywhere; }
table { border-collapse:collapse; width:100%; } th { text-align:left; color:var(--soft);
  font-weight:500; } td,th { padding:2px 8px 2px 0; vertical-align:top; }
td.n,th.n { text-align:right; font-variant-numeric:tabular-nums; }
code,.mono { font-family:ui-monospace,Menlo,Consolas,monospace; font-size:12.5px; }
.soft { color:var(--soft); } .good { color:var(--good); } .bad { color:var(--bad); }
.tag { display:inline-block; padding:0 7px; border-radius:9px; font-size:12px; color:#fff;
  background:var(--grey); } .tag.failing,.tag.refuted { background:var(--bad); }
.tag.proved { background:var(--good); } .tag.open { background:var(--warn); }
.stage { display:flex; gap:6px; align-items:center; margin:3px 0; flex-wrap:wrap; }
.stage .holds { flex:0 0 260px; color:var(--soft); font-size:12.5px; overflow-wrap:anywhere; }
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
pre { white-space:pre-wrap; overflow-wrap:anywhere; margin:4px 0; }
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
