// Shows Markdown as elements, while it is being written. Nothing of the text becomes markup.
import { element } from "../page.js";
import { t } from "../words.js";

const LONGEST = 5000; // characters of a line or paragraph that are read for marks; longer ones are shown as they are
const DEEPEST = 6; // marks inside marks
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,20})[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(\S.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const TABLE_RULE = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?$/;

/** An element whose text grows; blocks that stay the same keep their elements. */
export class MarkdownView {
  constructor() {
    this.node = element("div", { className: "markdown", dir: "auto" });
    this.sources = [];
  }

  write(text) {
    const blocks = blocksOf(text.split("\n"));
    let same = 0;
    while (same < blocks.length && blocks[same].source === this.sources[same]) same += 1;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    for (const block of blocks.slice(same)) this.node.append(block.make());
    this.sources = blocks.map(({ source }) => source);
  }
}

/** Lines -> [{source, make}], one a block. */
function blocksOf(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const { end, make } = blockAt(lines, at, depth);
    blocks.push({ source: lines.slice(at, end).join("\n"), make });
    at = end;
  }
  return blocks;
}

/** The block that begins at a line: its end, and what makes its element. */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (line.length > LONGEST) return paragraph(lines, at);
  if (FENCE.test(line)) return fence(lines, at);
  if (HEADING.test(line)) return { end: at + 1, make: () => heading(line) };
  if (RULE.test(line)) return { end: at + 1, make: () => element("hr") };
  if (beginsTable(lines, at)) return table(lines, at);
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  return paragraph(lines, at);
}

/** Whether a line is a table's head: the rule below has marks between as many columns. */
function beginsTable(lines, at) {
  const [head, rule] = [lines[at], lines[at + 1] ?? ""];
  if (!head.includes("|") || !rule.includes("|") || rule.length > LONGEST || !TABLE_RULE.test(rule.trim())) return false;
  return cellsOf(head).length === cellsOf(rule).length;
}

/** The first line from `at` on for which the test fails. */
function endOf(lines, at, test) {
  let end = at;
  while (end < lines.length && test(lines[end], end)) end += 1;
  return end;
}

function fence(lines, at) {
  const [, mark, language] = FENCE.exec(lines[at]);
  const isEnd = (line) => line.trim().startsWith(mark) && /^(`+|~+)$/.test(line.trim());
  const end = endOf(lines, at + 1, (line) => !isEnd(line));
  const make = () => {
    const code = element("code", { textContent: lines.slice(at + 1, end).join("\n") });
    const label = language ? t("chat.code", { language }) : t("chat.anyCode");
    const pre = element("pre", { tabIndex: 0, attributes: { role: "region", "aria-label": label } });
    pre.append(code);
    return pre;
  };
  return { end: Math.min(end + 1, lines.length), make };
}

/** Headings of an answer stand below those of the page. */
function heading(line) {
  const [, marks, text] = HEADING.exec(line);
  const made = element(`h${Math.min(6, marks.length + 2)}`);
  return withMarks(made, text);
}

function quote(lines, at, depth) {
  const end = endOf(lines, at, (line) => QUOTE.test(line));
  const inner = lines.slice(at, end).map((line) => QUOTE.exec(line)[1]);
  return { end, make: () => filled(element("blockquote"), inner, depth) };
}

function filled(parent, lines, depth) {
  for (const block of blocksOf(lines, depth + 1)) parent.append(block.make());
  return parent;
}

/** A list with what is indented below its items. */
function list(lines, at, depth) {
  const [, indent, first] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first);
  const isIndented = (line) => line.length - line.trimStart().length > indent.length;
  const isOwn = (line) => ITEM.exec(line)?.[1].length <= indent.length && /\d/.test(ITEM.exec(line)[2]) === isOrdered && !RULE.test(line);
  const goesOn = (line, place) => isOwn(line) || (line.trim() ? isIndented(line) : isPart(lines[place + 1]));
  const isPart = (line) => line !== undefined && line.trim() !== "" && (isOwn(line) || isIndented(line));
  const end = endOf(lines, at, goesOn);
  const make = () => {
    const made = element(isOrdered ? "ol" : "ul", isOrdered ? { start: parseInt(first, 10) } : {});
    for (const item of itemsOf(lines.slice(at, end), isOwn)) made.append(listItem(item, depth));
    return made;
  };
  return { end, make };
}

/** Lines of a list -> the lines of each item, without their common indent. */
function itemsOf(lines, isOwn) {
  const items = [];
  for (const line of lines) {
    if (isOwn(line)) items.push([ITEM.exec(line)[3]]);
    else items.at(-1).push(line);
  }
  return items;
}

function listItem([first, ...rest], depth) {
  const indents = rest.filter((line) => line.trim()).map((line) => line.length - line.trimStart().length);
  const least = Math.min(...indents, LONGEST);
  const made = withMarks(element("li"), first);
  return filled(made, rest.map((line) => line.slice(least)), depth);
}

function table(lines, at) {
  const end = endOf(lines, at, (line) => line.includes("|"));
  const make = () => {
    const made = element("table");
    const rows = [lines[at], ...lines.slice(at + 2, end)];
    const head = made.createTHead();
    const body = made.createTBody();
    rows.forEach((line, index) => addRow(index === 0 ? head : body, line, index === 0 ? "th" : "td"));
    const scroller = element("div", { className: "scroll", tabIndex: 0, attributes: { role: "group", "aria-label": t("chat.table") } });
    scroller.append(made);
    return scroller;
  };
  return { end, make };
}

/** The cells of a table's line; a mark after a backslash is text. */
function cellsOf(line) {
  const inner = line.trim().replace(/^\||(?<!\\)\|$/g, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.replaceAll("\\|", "|"));
}

function addRow(section, line, tag) {
  const row = section.insertRow();
  for (const cell of cellsOf(line)) row.append(withMarks(element(tag), cell.trim()));
}

const BEGINS_BLOCK = [FENCE, HEADING, RULE, QUOTE, /^\s*[-*+]\s+\S/, /^\s*1[.)]\s+\S/];

function paragraph(lines, at) {
  const goesOn = (line, place) => line.trim() !== "" && (place === at || line.length > LONGEST || !BEGINS_BLOCK.some((begin) => begin.test(line)));
  const end = Math.max(at + 1, endOf(lines, at, goesOn));
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  return { end, make: () => withMarks(element("p"), text) };
}

const MARKS = [
  { pattern: /(`+)([^`](?:.*?[^`])??)\1(?!`)/sy, make: ([, , text]) => element("code", { textContent: text.trim() }) },
  { pattern: /\*\*(?=\S)(.+?)(?<=\S)\*\*(?!\*)/sy, make: ([, text], depth) => withMarks(element("strong"), text, depth) },
  { pattern: /\*(?=[^\s*])(.+?)(?<=[^\s*])\*(?!\*)/sy, make: ([, text], depth) => withMarks(element("em"), text, depth) },
  { pattern: /(?<!\w)__(?=\S)(.+?)(?<=\S)__(?!\w)/sy, make: ([, text], depth) => withMarks(element("strong"), text, depth) },
  { pattern: /(?<!\w)_(?=[^\s_])(.+?)(?<=[^\s_])_(?!\w)/sy, make: ([, text], depth) => withMarks(element("em"), text, depth) },
  { pattern: /~~(?=\S)(.+?)(?<=\S)~~/sy, make: ([, text], depth) => withMarks(element("del"), text, depth) },
  // A picture becomes a link: the page fetches nothing that a model names.
  { pattern: /!?\[([^\]]*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"]*")?\s*\)/y, make: namedLink },
  { pattern: /(?<!\w)https?:\/\/[^\s<>"'`*]*[^\s<>"'`*.,;:!?)\]}]/iy, make: ([address]) => link(address, address) ?? document.createTextNode(address) },
  { pattern: /\\([!-/:-@[-`{-~])/y, make: ([, sign]) => document.createTextNode(sign) },
  { pattern: /\n/y, make: () => element("br") },
];
const MAY_BEGIN = /[`*_~![\\\nh]/gi;

function namedLink([whole, name, address], depth) {
  const made = link(address, "");
  if (made === null) return document.createTextNode(whole);
  return name ? withMarks(made, name, depth) : Object.assign(made, { textContent: address });
}

/** A link to another site, in a tab that knows nothing of this one; null for addresses that are no http(s). */
function link(address, text) {
  if (!/^https?:\/\//i.test(address) || !URL.canParse(address)) return null;
  return element("a", { href: address, textContent: text, target: "_blank", rel: "noopener noreferrer nofollow" });
}

/** Append a text with its marks to an element. */
function withMarks(parent, text, depth = 0) {
  if (depth >= DEEPEST || text.length > LONGEST) {
    parent.append(text);
    return parent;
  }
  let plain = 0;
  let at = 0;
  while (at < text.length) {
    at = nextMark(text, at);
    const found = markAt(text, at);
    if (found === null) {
      at += /^`*/.exec(text.slice(at))[0].length || 1; // no mark begins inside a run of backticks
      continue;
    }
    if (at > plain) parent.append(text.slice(plain, at));
    parent.append(found.mark.make(found.match, depth + 1));
    at += found.match[0].length;
    plain = at;
  }
  if (plain < text.length) parent.append(text.slice(plain));
  return parent;
}

/** The next sign that may begin a mark. */
function nextMark(text, from) {
  MAY_BEGIN.lastIndex = from;
  return MAY_BEGIN.exec(text)?.index ?? text.length;
}

function markAt(text, at) {
  for (const mark of MARKS) {
    mark.pattern.lastIndex = at;
    const match = mark.pattern.exec(text);
    if (match !== null) return { mark, match };
  }
  return null;
}
