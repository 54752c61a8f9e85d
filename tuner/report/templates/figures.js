// Draws each figure of the page in the page's colors, and again when the reader changes between light and dark.
(() => {
  const config = { displaylogo: false, responsive: true, displayModeBar: false };
  const css = () => getComputedStyle(document.documentElement);

  // Colors are written as var(--name); plotly needs their values.
  const painted = (content, styles) =>
    JSON.parse(content, (_, value) => {
      const variable = typeof value === "string" && /^var\((--[a-z-]+)\)$/.exec(value);
      return variable ? styles.getPropertyValue(variable[1]).trim() : value;
    });

  const figures = [...document.querySelectorAll("figure.plot")].map((element) => ({
    canvas: element.querySelector(".canvas"),
    buttons: [...element.querySelectorAll(".views button")],
    content: element.querySelector("script").textContent,
  }));

  const draw = ({ canvas, content }) => {
    const { data, layout } = painted(content, css());
    return Plotly.react(canvas, data, layout, config);
  };

  const show = ({ canvas, buttons, content }, index) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    return Plotly.relayout(canvas, JSON.parse(content).views[index]);
  };

  const start = async (figure) => {
    await draw(figure);
    figure.buttons.forEach((button, index) => button.addEventListener("click", () => show(figure, index)));
    if (figure.buttons.length) await show(figure, 0);
    figure.canvas.dataset.drawn = "true";
  };

  // One after another, so that the page can be read and scrolled meanwhile.
  const startAll = (rest) => {
    if (!rest.length) return;
    start(rest[0]).finally(() => setTimeout(startAll, 0, rest.slice(1)));
  };
  startAll(figures);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => figures.forEach(draw));
})();
