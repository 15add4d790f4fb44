"""Bar charts as inline SVG, without scripts and without other files."""

from html import escape

WIDTH = 480
ROW_HEIGHT = 44
BAR_HEIGHT = 14


def number(value):
    """A number with a sensible count of digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.2g}" if value < 10 else f"{value:.1f}"


def bars(title, unit, rows):
    """A chart of horizontal bars. Each row: a label, a value, a class (alone, native, xsched), and both ends of a line that shows
    its range, or None. Returns nothing if there is no row."""
    rows = [row for row in rows if row[1] is not None]
    if not rows:
        return ""
    top = max(max(value, extent[1] if extent else 0) for _, value, _, extent in rows) or 1
    room = WIDTH - 130
    height = ROW_HEIGHT * len(rows) + 4
    parts = [f'<figure><figcaption>{escape(title)}</figcaption>'
             f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for index, (label, value, kind, extent) in enumerate(rows):
        y = ROW_HEIGHT * index
        length = max(2, room * value / top)
        parts.append(f'<text x="0" y="{y + 15}" class="label">{escape(label)}</text>')
        parts.append(f'<rect x="0" y="{y + 22}" width="{length:.1f}" height="{BAR_HEIGHT}" rx="2" class="{kind}"/>')
        end = length
        if extent and extent[1] > extent[0]:
            low, high = (room * edge / top for edge in extent)
            middle = y + 22 + BAR_HEIGHT / 2
            parts.append(f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8" class="spread"/>')
            end = max(end, high)
        text = number(value) if not extent or extent[0] != value or extent[1] <= value else f"{number(value)} / {number(extent[1])}"
        parts.append(f'<text x="{end + 6:.1f}" y="{y + 22 + BAR_HEIGHT - 3}" class="value">{escape(text)} {escape(unit)}</text>')
    parts.append("</svg></figure>")
    return "".join(parts)
