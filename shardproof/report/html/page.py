"""The text of the page.  Every value is escaped: names come from plans that nobody trusts."""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from shardproof.report.html.style import CSS, SCRIPT

#: Pixels of one row of the schedule.
ROW: Final = 22

TEMPLATE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{{ d.verdict }}: {{ d.plan.name if d.plan else d.run_dir }}</title>
<style>{{ css }}</style>
</head>
<body>
<header class="{{ d.verdict }}"><div><b>{{ d.verdict }}</b><span>{{ d.says }}</span>
{% if d.plan %}<span class="plan">{{ d.plan.name }}</span>{% endif %}</div></header>
<main>
{% set f = d.first %}
<section class="three" id="answer">
{% if d.verdict == "proved" %}
<div class="card"><h3>What was shown</h3>
  {% for k in d.conclusions.kinds %}<p><span class="good">✓</span> {{ k.kind }}:
  {{ "{:,}".format(k.held) }} of {{ "{:,}".format(k.all) }}</p>{% endfor %}</div>
<div class="card"><h3>Where</h3>
  <p class="big">{{ many(d.counts.ranks, "rank") }}{% if d.plan %},
  {{ many(d.plan.microbatches, "microbatch", "microbatches") }} each{% endif %}</p>
  <p>{{ "{:,}".format(d.counts.parallel_operators) }} operators against
  {{ "{:,}".format(d.counts.single_operators) }} of the single-device plan, in
  {{ "%.1f"|format(d.seconds.total) }} s.</p></div>
<div class="card"><h3>What to do</h3>
  <p>Nothing has to be changed. Read <a href="#assumed">what was assumed</a>; the proof holds under
  that.</p>{% if d.findings %}<p>{{ many(d.findings|length + d.more_findings, "finding") }} beside
  the proof: <a href="#findings">below</a>.</p>{% endif %}
  <p class="soft">To have it checked again: <code>shardproof check RUN_DIR</code></p></div>
{% else %}
<div class="card"><h3>{{ "Why there is no verdict" if d.verdict == "inconclusive"
  else "What is wrong" }}</h3>
  {% if d.reason %}<p class="big">{{ d.reason }}</p>{% endif %}
  {% if f %}<p class="{{ 'big' if not d.reason }}">{{ f.message }}</p>{{ said(f) }}{% endif %}
  {% if d.findings|length > 1 %}<p><a href="#findings">{{ many(d.findings|length - 1
  + d.more_findings, "more finding") }}</a></p>{% endif %}</div>
<div class="card"><h3>Where</h3>
  {% if f %}{{ place(f) }}{% else %}<p class="soft">No place is known.</p>{% endif %}</div>
<div class="card"><h3>What to do</h3>
  {% if f and f.cause %}<p><b>Cause:</b> {{ f.cause }}{{ ", likely" if not f.advice.verified }}</p>
  {% endif %}
  {% if f and f.advice.text %}<p class="big">{{ ticks(f.advice.text) }}</p>
  <p class="soft">{{ "Verified: with this change every conclusion holds." if f.advice.verified else
  "Likely, from what was found; not tried." }}</p>
  {% elif d.verdict == "inconclusive" %}
  {% if d.to_try and not d.order %}<p class="big">Try {{ ticks(d.to_try) }}.</p>{% endif %}
  <p class="{{ 'soft' if d.to_try else 'big' }}">This is no statement about the plan, good or
  bad.</p>
  {% else %}<p>Correct the input as the message says, and run again.</p>{% endif %}
  {% if d.order %}<p><b>Order of groups:</b> {{ ticks(d.order) }}.</p>{% endif %}</div>
{% endif %}
</section>

{% if d.plan %}
<section class="two">
<div><h2>Ranks</h2><div class="card" id="mesh">
  <p class="soft">{{ many(d.plan.ranks, "rank") }}:
  {% for a in d.plan.mesh.axes %}{{ a.name }} {{ a.extent }}{{ " (replicas)" if a.replica }}{{
  ", " if not loop.last }}{% endfor %}.
  {% if d.plan.mesh.replicas > 1 %}One of {{ "{:,}".format(d.plan.mesh.replicas) }} replicas is
  drawn.{% endif %} A row holds the layers it names.</p>
  {% for s in d.plan.mesh.stages %}<div class="stage"><span class="holds">{{ s.holds }}</span>
  <span class="boxes">
  {% for b in s.boxes %}<span class="box{{ ' failing' if b.failing }}" title="{{ b.at }}">{{
  b.rank }}{{ " ✗" if b.failing }}</span>{% endfor %}
  {% if s.more %}<span class="soft">and {{ s.more }} more that fail</span>{% endif %}</span></div>
  {% endfor %}
  {% if d.plan.mesh.more %}<p class="soft">and {{ d.plan.mesh.more }} more rows</p>{% endif %}
</div>
{% if d.plan.schedule and not d.plan.schedule.wide %}{{ timeline(d.plan.schedule) }}{% endif %}
</div>
<div><h2>Where the layers' tensors are</h2><div class="card" id="strip">
  {% if not d.plan.strip %}<p class="soft">Not known: the plan contradicts itself, and was not
  followed further.</p>{% else %}
  <p class="legend"><span><i class="replicated"></i>replicated</span><span><i class="sharded"></i>
  sharded</span><span><i class="partial"></i>partial sum</span>
  {% if d.verdict != "proved" %}<span><i class="other"></i>no single-device value</span>
  <span><i class="unknown"></i>not known</span>{% endif %}</p>
  {% for kind in ("parameters", "forward", "communication", "backward") %}
  <div class="soft">{{ kind }}</div><div class="strip">
  {% for l in d.plan.strip %}<div title="{{ l.name }}: {% for n, c, _ in l.bars[kind] %}{{ c }} {{
  n }} {% endfor %}"><div class="col {{ 'failing' if l.status == 'failing' }}">{% for n, c, p in
  l.bars[kind] %}<div class="{{ n }}" style="flex:{{ c }}"></div>{% endfor %}</div></div>
  {% endfor %}</div>{% endfor %}
  {% if d.plan.strip|length <= 24 %}<div class="strip">{% for l in d.plan.strip %}<div><div
  class="name" title="{{ l.name }}">{{ l.name }}</div></div>{% endfor %}</div>{% endif %}
  <p class="soft">One column for each layer, {{ d.plan.strip[0].name if d.plan.strip }} to {{
  d.plan.strip[-1].name if d.plan.strip }}{% if d.plan.strip_more %}, and {{ d.plan.strip_more }}
  more{% endif %}. Slices of the batch do not count as shards.</p>{% endif %}
</div></div>
</section>
{% if d.plan.schedule and d.plan.schedule.wide %}<section>{{ timeline(d.plan.schedule) }}</section>
{% endif %}
{% endif %}

{% if d.findings or d.beside %}
<section id="findings"><h2>{{ "Findings beside the proof" if d.verdict == "proved" else "Findings"
}} ({{ d.findings|length + d.more_findings }})</h2>
{% for one in d.findings %}
<article class="card"><h3><span class="tag {{ 'failing' if d.verdict == 'refuted' }}">{{ one.kind
  }}</span> {{ one.message }}</h3>
  <div class="two"><div>{{ place(one) }}</div>
  <div>{% if one.cause %}<p><b>Cause:</b> {{ one.cause }}{{ ", likely" if not one.advice.verified
  }}</p>{% endif %}
  {% if one.advice.text %}<p><b>{{ "Repair (verified)" if one.advice.verified else "Likely"
  }}:</b> {{ ticks(one.advice.text) }}</p>{% endif %}
  {% if not one.tensors %}{{ said(one) }}{% endif %}</div></div>
  {% if one.tensors %}{{ drawn(one.tensors) }}{% endif %}
  {% if one.followers %}{{ kinds(one.followers, "gone with the same repair"
  if one.advice.verified else "of the same cause") }}{% endif %}
</article>{% endfor %}
{% if d.more_findings %}<p class="soft">and {{ d.more_findings }} more, all in
<code>result.json</code> of the run directory</p>{% endif %}
{% if d.beside %}<div class="card">{{ kinds(d.beside, "beside the verdict") }}</div>{% endif %}
</section>{% endif %}

<section class="two"><div><h2 id="assumed">What was assumed</h2><div class="card"><ul>
{% for a in d.assumptions %}<li>{{ a }}</li>{% endfor %}</ul></div></div>
<div><h2>{{ "What was proved" if d.verdict == "proved" else "What had to hold" }}</h2>
<div class="card">{% if not d.conclusions.kinds %}<p class="soft">Nothing was concluded.</p>
{% else %}<table><tr><th>conclusion</th><th class="n">holds</th><th class="n">of</th></tr>
{% for k in d.conclusions.kinds %}<tr><td>{{ k.kind }}{% if k.says %}<br><span class="soft">{{
k.says }}</span>{% endif %}</td><td class="n {{ 'good' if k.held == k.all
else 'bad' }}">{{ "{:,}".format(k.held) }}</td><td class="n">{{ "{:,}".format(k.all) }}</td></tr>
{% endfor %}</table>{% endif %}
{% if d.conclusions.failed %}<details><summary class="bad">{{ d.conclusions.failed|length
+ d.conclusions.more }} that do not hold</summary><ul>{% for c in d.conclusions.failed %}<li>{{
c.message or c.kind ~ " of " ~ c.name ~ " on ranks " ~ c.ranks }}</li>{% endfor %}
{% if d.conclusions.more %}<li>and {{ d.conclusions.more }} more</li>{% endif %}</ul></details>
{% endif %}</div>
{% if d.kept_whole %}<h2 id="whole">Kept whole</h2><div class="card">
<p class="soft">Axes that were not made smaller. Of all others, a few positions stand for the
rest.</p><ul>
{% for line in d.kept_whole %}{% set what, _, why = line.partition(":") %}
<li>{{ what }}{% if why %}<span class="soft">:{{ why }}</span>{% endif %}</li>{% endfor %}
</ul></div>{% endif %}</div></section>

{% if d.plan and d.plan.groups %}
<section><h2>Layers and operators</h2><div class="card" id="layers">
<p><input type="search" id="search" placeholder="Search: a layer, an operator, failing, partial …">
<span class="soft" id="hits"></span></p>
{% for g in d.plan.groups %}<details class="layer" data-names="{{ g.names }}"{{ " open" if g.status
== "failing" and d.plan.groups|length < 60 }}><summary><b>{{ g.title }}</b><span class="tag {{
g.status }}">{{ g.status }}</span><span class="soft">{{ many(g.operators, "operator") }}</span>
<span class="soft">{{ many(g.templates, "template") }}</span>
{% for kind in ("forward", "backward") %}<span class="bar" title="{{ kind }}">{% for n, c, p in
g.bars.get(kind, []) %}<span class="{{ n }}" style="flex:{{ c }}"></span>{% endfor %}</span>
{% endfor %}</summary>
<table><tr><th>operator</th><th>in</th><th>its result is</th><th>status</th><th class="n">programs
</th></tr>{% for r in g.rows %}<tr><td>{{ r.name }}</td><td class="soft">{{ r.place }}</td><td>{{
r["is"] }}</td><td class="{{ 'bad' if r.status == 'failing' }}">{{ r.status }}</td><td class="n">{{
r.ranks }}</td></tr>{% endfor %}</table>
{% if g.more %}<p class="soft">and {{ g.more }} more rows</p>{% endif %}</details>{% endfor %}
</div></section>{% endif %}

<section class="two"><div><h2>Time and memory</h2><div class="card">
<table>{% for p in d.phases %}<tr><td>{{ p.name }}</td><td class="n">{{ "%.2f"|format(p.seconds) }}
s</td><td style="width:60%"><div class="bar"><span class="replicated" style="width:{{
"%.1f"|format(p.percent) }}%"></span></div></td></tr>{% endfor %}
<tr><td><b>total</b></td><td class="n"><b>{{ "%.2f"|format(d.seconds.total) }} s</b></td><td>at most
{{ "{:,.0f}".format(d.memory) }} MiB</td></tr></table></div></div>
<div><h2>How much was distinct</h2><div class="card"><table>
{% for s in d.dedup %}<tr><td>{{ s.name }}</td><td class="n">{{ "{:,}".format(s.count) }}</td>
<td style="width:40%"><div class="bar"><span class="sharded" style="width:{{
"%.1f"|format(s.percent) }}%"></span></div></td></tr>{% endfor %}</table>
<p class="soft">Bars are logarithmic.{% if d.counts.cached %} {{ "{:,}".format(d.counts.cached) }}
templates were known from earlier runs.{% endif %}{% if d.verdicts %} Verdicts:
{% for v, n in d.verdicts.verdicts.items() %}{{ n }} {{ v }}{{ ", " if not loop.last }}{% endfor +%}
({% for v, n in d.verdicts.solvers.items() %}{{ v }} {{ n }}{{ ", " if not loop.last }}{% endfor
%}).{% endif %}</p></div></div></section>

{% if d.certificate %}<section><h2>Certificate</h2><div class="card"><dl>
<dt>plan</dt><dd class="mono">{{ d.certificate.plan }}</dd>
{% for name, sha in d.certificate.inputs.items() %}<dt>{{ name }}</dt>
<dd class="mono">{{ sha }}</dd>
{% endfor %}<dt>solvers</dt><dd>{% for n, v in d.certificate.solvers.items() %}{{ n }} {{ v
}}{{ ", " if not loop.last }}{% endfor %}</dd>
<dt>run</dt><dd class="mono">{{ d.run_dir }}</dd></dl>
<details><summary>What has to be trusted</summary><ul>{% for t in d.certificate.trusted %}<li>{{ t
}}</li>{% endfor %}</ul></details></div></section>{% endif %}
</main>
<script>{{ script }}</script>
</body>
</html>
"""

PARTS: Final = """
{% macro place(f) %}<dl>
{% if f.operator %}<dt>operator</dt><dd><b>{{ f.operator }}</b></dd>{% endif %}
{% if f.reference %}<dt>single device</dt><dd>{{ f.reference }}</dd>{% endif %}
{% if f.layer %}<dt>layer</dt><dd>{{ f.layer }}</dd>{% endif %}
{% if f.source %}<dt>source</dt><dd class="mono">{{ f.source }}</dd>{% endif %}
{% if f.ranks %}<dt>ranks</dt><dd><b class="bad">{{ f.ranks }}</b>{% if f.agreeing_ranks %};
<span class="good">{{ f.agreeing_ranks }} right</span>{% elif f.reference %}, all that run it
{% endif %}</dd>{% endif %}
{% if f.microbatches %}<dt>microbatches</dt><dd>{{ f.microbatches }}{% if f.agreeing_microbatches
%}; <span class="good">{{ f.agreeing_microbatches }} right</span>{% endif %}</dd>
{% elif f.reference %}<dt>microbatches</dt><dd>all</dd>{% endif %}
</dl>{% endmacro %}

{% macro ticks(text) %}{% for part in text.split("`") %}{% if loop.index0 % 2 %}<code>{{ part
}}</code>{% else %}{{ part }}{% endif %}{% endfor %}{% endmacro %}

{% macro said(f) %}{% if f.tensors %}{% set t = f.tensors[0] %}<p class="soft">{{ t.name }}:</p>
<dl>{% for s in t.shards[:4] %}<dt>{{ s.where }}</dt><dd class="mono"><span
class="{{ 'bad' if s.differs else 'good' }}">{{ s.actual }}</span> <span class="soft">{%
if s.differs %}instead of</span> {{ s.expected }}{% else %}as expected</span>{% endif %}</dd>
{% endfor %}</dl>
{% if t.shards|length > 4 %}<p class="soft">and {{ t.shards|length - 4 }} more ranks</p>{% endif %}
{% elif f.expected %}<dl><dt>expected</dt><dd class="mono">{{ f.expected }}</dd>
<dt>actual</dt><dd class="mono bad">{{ f.actual }}</dd></dl>{% endif %}{% endmacro %}

{% macro kinds(held, words) %}{% for k in held %}<details><summary><b>{{ k.kind }}</b>: {{
many(k.count, "finding") }}, {{ words }}</summary><ul>{% for text in k.said %}<li>{{ text }}</li>
{% endfor %}
{% if k.count > k.said|length %}<li>and {{ k.count - k.said|length }} more</li>{% endif %}</ul>
</details>{% endfor %}{% endmacro %}

{% macro drawn(tensors) %}
<h3>A counterexample: both programs run on the same random input, at small sizes</h3>
<p class="soft">Some values around the one that is furthest off; where they differ: expected, and
below it actual.</p>
{% for t in tensors %}<h3>{{ "It ends in the " if t.conclusion else "It begins with " }}{{ t.name }}
<span class="soft">differs on {{ t.differ }} of {{ t.all }} ranks shown</span></h3>
<div class="shards">{% for s in t.shards %}
<div class="shard{{ ' off' if s.differs }}"><div><b>{{ s.where }}</b> <span class="soft">{{ s.box
}}</span></div><div class="{{ 'bad' if s.differs else 'good' }}">{{ "differs" if s.differs else
"as expected" }}{% if s.index %} at {{ s.index }}{% endif %}</div>
<table class="grid">{% for row in s.cells %}<tr>{% for c in row %}
<td class="{{ 'off' if c.off }}">{{ c.expected }}{% if c.off %}<br><b>{{
c.actual }}</b>{% endif %}</td>{% endfor %}</tr>{% endfor %}
</table></div>{% endfor %}</div>{% endfor %}{% endmacro %}

{% macro timeline(s) %}<h2>Schedule</h2><div class="card" id="schedule">
<svg width="{{ 130 + s.steps * s.step }}" height="{{ 6 + s.rows|length * row }}"
role="img" aria-label="schedule">{% for r in s.rows %}{% set y = loop.index0 * row %}
<text x="0" y="{{ y + 15 }}">{{ r.name|truncate(20, True) }}</text>
{% for c in r.cells %}<rect x="{{ 126 + c.start * s.step }}" y="{{ y + 1 }}" width="{{ c.steps *
s.step - 1 }}" height="{{ row - 4 }}" rx="2" class="{{ c.kind }}{{ " failing" if c.failing
}}"></rect>
{% if s.step > 15 %}<text x="{{ 128 + c.start * s.step }}" y="{{ y + 15 }}">{{ c.kind }}{{
c.microbatch if c.microbatch >= 0 }}</text>{% endif %}{% endfor %}{% endfor %}</svg>
<p class="soft legend"><span><i class="F"></i>F forward</span><span><i class="B"></i>B
backward</span><span><i class="R"></i>R reduction of gradients</span>The number is the microbatch.
Forward counts as one step, backward as two: order and waiting, not seconds.{% if s.cut %} Later
steps are left out.{% endif %}{% if s.more %} {{ s.more }} more rows are left out.{% endif +%}
Rows that run the same are one.</p></div>{% endmacro %}
"""


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def render(data: dict[str, Any]) -> str:
    """The page of what `collect` found."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(many=_many, row=ROW)
    environment.globals.update(vars(environment.from_string(PARTS).module))
    page = environment.from_string(TEMPLATE)
    return page.render(d=data, css=Markup(CSS), script=Markup(SCRIPT))
