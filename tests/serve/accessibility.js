// Returns what is wrong with a page: contrast below 4.5, controls without names, references to elements that do not exist.
() => {
  const found = [];
  const all = (selector) => [...document.querySelectorAll(selector)];

  const channel = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (color) => {
    const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((v, i) => v * a + under[i] * (1 - a));
  const backgroundOf = (element) => parse(getComputedStyle(element).backgroundColor);
  for (const each of all("body *")) {
    const hasText = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || each.closest("#colors, .hidden, noscript, :disabled") || !each.checkVisibility()) continue;
    const chain = [];
    for (let at = each; at; at = at.parentElement) chain.unshift(at);
    const background = chain.reduce((under, at) => over(backgroundOf(at), under), [255, 255, 255]);
    const fill = each.parentElement.querySelector(":scope > .fill"); // the bar behind the text
    for (const under of fill ? [background, over(backgroundOf(fill), background)] : [background]) {
      const color = over(parse(getComputedStyle(each).color), under);
      const [high, low] = [luminance(color), luminance(under)].sort((a, b) => b - a);
      const ratio = (high + 0.05) / (low + 0.05);
      if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(2)}: ${each.tagName} ${each.textContent.slice(0, 30)}`);
    }
  }

  const textOf = (id) => document.getElementById(id)?.textContent.trim();
  const isNamed = (each) =>
    each.labels?.length || each.getAttribute("aria-label") || each.textContent.trim() ||
    (each.getAttribute("aria-labelledby") ?? "").split(" ").some(textOf);
  for (const each of all("input, select, textarea, button, canvas[tabindex], [role=region], [role=img], [role=tabpanel]")) {
    if (each.checkVisibility() && !isNamed(each)) found.push(`no name: ${each.outerHTML.slice(0, 80)}`);
  }

  const ids = all("[id]").map((each) => each.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => found.push(`two elements with the id ${id}`));
  for (const name of ["aria-labelledby", "aria-describedby", "aria-controls", "for", "list"]) {
    for (const each of all(`[${name}]`)) {
      const missing = each.getAttribute(name).split(" ").filter((id) => !document.getElementById(id));
      missing.forEach((id) => found.push(`${name}: there is no ${id}`));
    }
  }

  const tabs = all("[role=tab]");
  if (tabs.filter((tab) => tab.getAttribute("aria-selected") === "true").length !== 1) found.push("not one selected tab");
  if (tabs.filter((tab) => tab.tabIndex === 0).length !== 1) found.push("not one tab in the tab order");
  if (all("main").length !== 1 || all("h1").length !== 1) found.push("not one main element and one heading");
  if (!document.documentElement.lang) found.push("no language");
  return found;
}
