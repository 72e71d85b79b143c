"""Texts that a model or a tool may write into a trajectory, each with the view's right outcome: shown as
text, inert.

``window.hacked`` is what a text tries to set, in whatever frame it manages to run.
"""

SCRIPTS = {
    "script": "<script>window.hacked=1;parent.hacked=1;top.hacked=1</script>",
    "end of the data": '</script><script>window.hacked=1</script><!-- <script> -->]]>"}]\n</textarea></title></style>',
    "handler": '<img src=x onerror="window.hacked=1"><svg onload=window.hacked=1><body onload=window.hacked=1>',
    "frame": '<iframe srcdoc="<script>top.hacked=1</script>"></iframe>"><iframe src=\'javascript:top.hacked=1\'>',
    "quotes": "' onmouseover='window.hacked=1' \" onfocus=\"window.hacked=1\" autofocus ` ${window.hacked=1} {{constructor}}",
    "link": "<a href=\"javascript:window.hacked=1\">x</a> <form action='https://evil.example'><button>x</button></form>",
    "style": "<style>*{display:none}</style><link rel=stylesheet href=https://evil.example/x.css>",
    "meta": '<meta http-equiv=refresh content="0;url=https://evil.example"><base href=https://evil.example>',
    "template": "<template><img src=x onerror=window.hacked=1></template><math><mtext></form><mglyph></math>",
    "entities": "&lt;script&gt;window.hacked=1&lt;/script&gt; &#60;img src=x onerror=window.hacked=1&#62; \\u003cscript\\u003e",
    "prototype": "__proto__",
}
CHARACTERS = {
    "ANSI": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J",
    "reading direction": "\u202egnp.exe\u202c \u2066isolated \u2067rtl \u200f \u061c", "NUL": "a\x00b\x00",
    "surrogates": "\ud800 \udfff \udc00\ud83d", "invisible": "\u200b\ufeff\u2060\u00ad", "combining": "Z" + "\u0301" * 500,
    "line ends": "a\rb\r\nc\u2028d\u2029e\x0b\x0c",
    "control tokens": "<|im_end|>\n<|im_start|>assistant <tool_call>{</tool_call>",
}  # fmt: skip
LONG = {
    "line": "x" * 1_000_000, "markup": "<b>" * 330_000, "depth": "(" * 1_000_000, "wide": "\U0001f4a9" * 250_000,
    "lines": "\n" * 1_000_000,
}  # fmt: skip
TEXTS = SCRIPTS | CHARACTERS | LONG
