"""Clean texts for the model: remove markup, code and "possible duplicate" notices."""

from __future__ import annotations

import html
import re
import unicodedata

# Stack Overflow shows the title of the original question at the top of its duplicate, which leaks
# the label. Three forms are known: a quoted block, the newer notice with a list of links, and
# either of them without markup. Titles may also end with "[duplicate]".
_LEAKS = re.compile(
    r"<blockquote>(?:(?!</blockquote>).)*?possible\s+duplicates?\b.*?</blockquote>"
    r"|<div[^>]*>(?:(?!</div>).)*?already\s+has\s+(?:an\s+)?answers?\s+here.*?</div>"
    r"|this\s+question\s+already\s+has\s+(?:an\s+)?answers?\s+here\s*:?\s*(?:</\w+>\s*)*<ul>.*?</ul>"
    r"|possible\s+duplicates?(?:\s+of)?\s*:?\s*(?:</?\w+[^>]*>\s*)*<a[^>]*>.*?</a>"
    r"|^[>*\s]*this\s+question\s+already\s+has\s+(?:an\s+)?answers?\s+here\s*:[*\s]*[^\n]*"
    r"|^[>*\s]*possible\s+duplicates?(?:\s+of)?\s*:[*\s]*[^\n]*"
    r"|\[\s*duplicate\s*\]",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
_CODE = re.compile(r"<pre\b.*?</pre>|<code\b[^>]*>.*?</code>", re.DOTALL | re.IGNORECASE)
_BARE_LINK = re.compile(r"<a\b[^>]*>\s*\w+://[^<]*</a>|\b\w+://\S+", re.IGNORECASE)
# Only HTML tags: an FAQ about job specs may contain a literal `<name>`.
_TAG = re.compile(
    r"</?(?:a|abbr|b|big|blockquote|body|br|center|code|dd|del|div|dl|dt|em|font|h[1-6]|hr|html|i"
    r"|iframe|img|ins|kbd|li|ol|p|pre|q|s|samp|script|small|span|strike|strong|sub|sup|table|tbody"
    r"|td|th|thead|tr|tt|u|ul|var)\b[^>]*>",
    re.IGNORECASE,
)
_SPACE = re.compile(r"\s+")
_NOT_WORD = re.compile(r"[^\w]+")


def clean(raw: str) -> str:
    """Return the text in lower case without duplicate notices, code, links and tags; may be ""."""
    text = raw
    if "uplicate" in raw or "already has" in raw or "UPLICATE" in raw:
        text = _LEAKS.sub(" ", text)
    if "<" in text:
        text = _TAG.sub(" ", _BARE_LINK.sub(" ", _CODE.sub(" ", text)))
    if "&" in text:
        text = html.unescape(text)
    return _SPACE.sub(" ", text).strip().lower()


def normalise(text: str) -> str:
    """Return the text in lower case without accents, punctuation and repeated spaces."""
    plain = text
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", text)
        plain = "".join(c for c in plain if not unicodedata.combining(c))
    return _NOT_WORD.sub(" ", plain.lower()).strip()
