// Finds elements as the selectors of Playwright do: CSS, `text=…`, `:text-is('…')`, `:has-text('…')`, ` >> nth=…`.
(selector, visibleOnly) => {
  const SPECIAL = /^(.*?):(text-is|has-text)\((['"])(.*?)\3\)(.*)$/;
  const textOf = (element) => element.textContent.replace(/\s+/g, " ").trim();
  const includes = (element, text) => textOf(element).toLowerCase().includes(text.toLowerCase());
  const isSmallest = (element, fits) => fits(element) && ![...element.children].some(fits);
  const tests = { "text-is": (element, text) => textOf(element) === text, "has-text": includes };

  function byCss(root, css) {
    const special = SPECIAL.exec(css);
    if (!special) return [...root.querySelectorAll(css)];
    const [, head, kind, , text, tail] = special;
    const fitting = [...root.querySelectorAll(head || "*")].filter((element) => tests[kind](element, text));
    return tail ? fitting.flatMap((element) => [...element.querySelectorAll(`:scope ${tail}`)]) : fitting;
  }

  function step(roots, part) {
    if (part.startsWith("nth=")) return roots.slice(Number(part.slice(4))).slice(0, 1);
    if (!part.startsWith("text=")) return roots.flatMap((root) => byCss(root, part));
    const fits = (element) => includes(element, part.slice(5));
    return roots.flatMap((root) => [...root.querySelectorAll("body *, *")].filter((each) => isSmallest(each, fits)));
  }

  const isVisible = (element) => element.checkVisibility({ visibilityProperty: true })
    && element.getBoundingClientRect().width > 0 && element.getBoundingClientRect().height > 0;
  const elements = selector.split(" >> ").reduce(step, [document]);
  return visibleOnly ? elements.filter(isVisible) : elements;
}
