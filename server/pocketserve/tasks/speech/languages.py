"""The English names of Whisper's languages by their codes.

Source: openai/whisper, tokenizer.py.
"""

from __future__ import annotations

from typing import Final

_TABLE: Final = """
af afrikaans|am amharic|ar arabic|as assamese|az azerbaijani|ba bashkir|be belarusian
bg bulgarian|bn bengali|bo tibetan|br breton|bs bosnian|ca catalan|cs czech|cy welsh
da danish|de german|el greek|en english|es spanish|et estonian|eu basque|fa persian
fi finnish|fo faroese|fr french|gl galician|gu gujarati|ha hausa|haw hawaiian|he hebrew
hi hindi|hr croatian|ht haitian creole|hu hungarian|hy armenian|id indonesian
is icelandic|it italian|ja japanese|jw javanese|ka georgian|kk kazakh|km khmer|kn kannada
ko korean|la latin|lb luxembourgish|ln lingala|lo lao|lt lithuanian|lv latvian
mg malagasy|mi maori|mk macedonian|ml malayalam|mn mongolian|mr marathi|ms malay
mt maltese|my myanmar|ne nepali|nl dutch|nn nynorsk|no norwegian|oc occitan|pa punjabi
pl polish|ps pashto|pt portuguese|ro romanian|ru russian|sa sanskrit|sd sindhi
si sinhala|sk slovak|sl slovenian|sn shona|so somali|sq albanian|sr serbian|su sundanese
sv swedish|sw swahili|ta tamil|te telugu|tg tajik|th thai|tk turkmen|tl tagalog
tr turkish|tt tatar|uk ukrainian|ur urdu|uz uzbek|vi vietnamese|yi yiddish|yo yoruba
yue cantonese|zh chinese
"""


def _read_table() -> dict[str, str]:
    names = {}
    for entry in _TABLE.strip().replace("\n", "|").split("|"):
        code, _, name = entry.partition(" ")
        names[code] = name
    return names


NAMES: Final = _read_table()
CODES: Final = {name: code for code, name in NAMES.items()}


def language_code(language: str) -> str:
    """Return the code of a language given as code, name or BCP 47 tag."""
    lower = language.strip().lower()
    if lower in CODES:
        return CODES[lower]
    return lower.replace("_", "-").partition("-")[0]


def name_of(code: str) -> str:
    """Return a language's English name; the code itself if it is unknown."""
    return NAMES.get(code, code)
