"""A page of sections with tables and pictures, written as Markdown and as one HTML file by two templates.

Doesn't depend on the content. Pictures stand inside the HTML, and beside the Markdown."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup, escape


@dataclass(frozen=True)
class Picture:
    """A figure's file, and what it shows."""

    file: Path
    caption: str


@dataclass(frozen=True)
class Exhibit:
    """A table with a sentence above it, a list of points and a note below; any of them may be missing."""

    lead: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    heading: str = ""
    points: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it; first of all its answer, if it gives one."""

    title: str
    exhibits: Sequence[Exhibit]
    pictures: Sequence[Picture] = ()
    answer: str = ""


MARKDOWN = """\
{% for section in sections %}
{{ "#" if loop.first else "##" }} {{ section.title }}

{% if section.answer %}
**{{ section.answer }}**

{% endif %}
{% for exhibit in section.exhibits %}
{% if exhibit.heading %}
### {{ exhibit.heading }}

{% endif %}
{% if exhibit.lead %}
{{ exhibit.lead }}

{% endif %}
{% if exhibit.header %}
{{ exhibit.header | line }}
{{ (["---"] * (exhibit.header | length)) | line }}
{% for row in exhibit.rows %}
{{ row | line }}
{% endfor %}

{% endif %}
{% if exhibit.points %}
{% for point in exhibit.points %}
- {{ point }}
{% endfor %}

{% endif %}
{% if exhibit.note %}
{{ exhibit.note }}

{% endif %}
{% endfor %}
{% for picture in section.pictures %}
![{{ picture.caption }}]({{ picture.file.relative_to(folder).as_posix() }})

*{{ picture.caption }}*

{% endfor %}
{% endfor %}
"""
HTML = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{{ sections[0].title }}</title><style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
.scroll { overflow-x: auto; margin: 1rem 0; background: /* a shadow at the right, while there is more */
  linear-gradient(to left, #fff 40%, #fff0) right / 2rem 100% no-repeat local,
  linear-gradient(to left, #0004, #0000) right / 1rem 100% no-repeat; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border: 1px solid #ccc; padding: 0.25rem 0.6rem; text-align: left; vertical-align: top; }
th { background: #f2f2f2; } figure { margin: 1.5rem 0; } img { max-width: 100%; } figcaption { color: #555; }
.answer { font-size: 1.3rem; line-height: 1.4; border-left: 0.4rem solid #0072B2; background: #f2f7fb; }
.answer { padding: 0.4rem 1rem; }
@media (max-width: 40rem) {
  h1 { font-size: 1.5rem; } .answer { font-size: 1.1rem; } ul { padding-left: 1.2rem; }
  table { font-size: 0.75rem; } th, td { padding: 0.2rem 0.3rem; }
}
</style></head>
<body>
{% for section in sections %}
{% set level = "h1" if loop.first else "h2" %}
<{{ level }}>{{ section.title }}</{{ level }}>
{% if section.answer %}<p class="answer">{{ section.answer | marked }}</p>{% endif +%}
{% for exhibit in section.exhibits %}
{% if exhibit.heading %}<h3>{{ exhibit.heading }}</h3>{% endif +%}
{% if exhibit.lead %}<p>{{ exhibit.lead | marked }}</p>{% endif +%}
{% if exhibit.header %}
<div class="scroll" tabindex="0"><table>
<tr>{% for name in exhibit.header %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in exhibit.rows %}
<tr>{% for value in row %}<td>{{ value | marked }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% endif %}
{% if exhibit.points %}
<ul>{% for point in exhibit.points %}<li>{{ point | marked }}</li>{% endfor %}</ul>
{% endif %}
{% if exhibit.note %}<p>{{ exhibit.note | marked }}</p>{% endif +%}
{% endfor %}
{% for picture in section.pictures %}
<figure><img alt="{{ picture.caption }}" src="data:image/png;base64,{{ picture.file | base64 }}">
<figcaption>{{ picture.caption }}</figcaption></figure>
{% endfor %}
{% endfor %}
</body></html>
"""


def write_pages(sections: Sequence[Section], folder: Path, name: str) -> list[Path]:
    """Write `name.md` and `name.html` into a folder, which must hold the pictures; the first title is the page's."""
    markdown, page = folder / f"{name}.md", folder / f"{name}.html"
    shown = _template(MARKDOWN, is_html=False).render(sections=sections, folder=folder)
    markdown.write_text(f"{shown.rstrip()}\n", encoding="utf-8")
    page.write_text(_template(HTML, is_html=True).render(sections=sections), encoding="utf-8")
    return [markdown, page]


def _template(source: str, *, is_html: bool) -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=is_html, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"line": _line, "marked": _marked, "base64": _base64}
    return environment.from_string(source)


def _line(values: Sequence[str]) -> str:
    """A line of a Markdown table."""
    escaped = (value.replace("|", r"\|") for value in values)
    return f"| {' | '.join(escaped)} |"


def _marked(text: str) -> Markup:
    """Bold and code, as Markdown marks them, with everything else escaped."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", bold))


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
