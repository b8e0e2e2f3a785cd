// Pointing at a contender in a figure, or at its name there, dims the others.
addEventListener("pointerover", ({ target }) => {
  const contenderOf = (element) => [...element.classList].find((name) => name.startsWith("series-"));
  const own = target.closest(".series"), all = target.closest("svg")?.querySelectorAll("[class*=series-]") ?? [];
  document.querySelectorAll(".dimmed").forEach((element) => element.classList.remove("dimmed"));
  if (own) all.forEach((element) => element.classList.toggle("dimmed", contenderOf(element) !== contenderOf(own)));
});
