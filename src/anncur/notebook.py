"""How answers and indexes look in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2

if TYPE_CHECKING:
    from anncur.index.index import IndexInfo
    from anncur.ranking import Hits

SHOWN_TEXT = 200  # characters

_TEMPLATES = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
HITS = _TEMPLATES.from_string(
    """<table>
<caption>{{ hits.query.marked_text }} ({{ hits.method }}, {{ hits.calls }} pairs scored in {{ "%.2f" % hits.seconds }} s
{%- if hits.estimated_recall is not none %}, about {{ "%.0f" % (100 * hits.estimated_recall) }}% found{% endif %}
{%- if hits.is_unlike_anchors %}, unlike the anchor queries{% endif %}
{%- if hits.is_partial %}, cut short{% endif %})</caption>
<thead><tr><th>score</th><th>id</th><th>title</th><th>text</th></tr></thead>
<tbody>
{% for hit in hits %}
<tr><td>{{ "%.4g" % hit.score }}</td><td>{{ hit.id }}</td><td>{{ hit.item.title }}</td>
<td style="text-align: left">{{ hit.item.text | truncate(length) }}</td></tr>
{% endfor %}
</tbody></table>"""
)
INDEX = _TEMPLATES.from_string(
    """<table>
<caption>anncur.Index</caption>
<tbody>
{% for name, value in rows.items() %}
<tr><th style="text-align: left">{{ name }}</th><td style="text-align: left">{{ value }}</td></tr>
{% endfor %}
</tbody></table>"""
)


def hits_html(hits: Hits) -> str:
    """A table of hits, and what they cost."""
    return HITS.render(hits=hits, length=SHOWN_TEXT)


def index_html(info: IndexInfo) -> str:
    """What an index is made of."""
    rows = {
        "items": f"{info.n_items:,}",
        "anchor queries": f"{info.n_anchor_queries:,}",
        "scorer": info.scorer,
        "retrievers": ", ".join(info.retrievers) or "none",
        "kept": "in memory" if info.path is None else str(info.path),
        "version": info.version,
    }
    return INDEX.render(rows=rows)
