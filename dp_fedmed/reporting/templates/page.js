"use strict";
(() => {
  // Print what is folded away, too.
  const folded = [];
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details:not([open])")) {
      folded.push(each);
      each.open = true;
    }
  });
  addEventListener("afterprint", () => {
    for (const each of folded.splice(0)) each.open = false;
  });

  const table = document.getElementById("runs-table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);

  // Sort by a column: numbers by value, the rest as text; rows without a number come last.
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const rising = heading.getAttribute("aria-sort") !== "ascending";
      for (const each of headings) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
      };
      const numeric = rows.some((row) => key(row) !== null);
      const compare = (a, b) => {
        if (!numeric) return a.cells[column].textContent.localeCompare(b.cells[column].textContent);
        return key(a) - key(b);
      };
      const known = numeric ? rows.filter((row) => key(row) !== null) : rows.slice();
      const unknown = numeric ? rows.filter((row) => key(row) === null) : [];
      known.sort((a, b) => (rising ? compare(a, b) : compare(b, a)));
      body.append(...known, ...unknown);
    });
  });

  // Show the rows that hold every word, of the chosen style and status.
  const filters = Array.from(document.querySelectorAll("[data-filter]"));
  const count = document.querySelector("[data-role=count]");
  const filter = () => {
    const chosen = Object.fromEntries(filters.map((each) => [each.dataset.filter, each.value]));
    const words = chosen.text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits =
        words.every((word) => text.includes(word)) &&
        (!chosen.style || row.dataset.style === chosen.style) &&
        (!chosen.status || row.dataset.status === chosen.status);
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    count.textContent = `${shown} of ${rows.length} runs`;
  };
  for (const each of filters) each.addEventListener("input", filter);
  filter();

  // The best setting up to an ε: the last row of the block's table that the ε allows.
  const chosen = new Map();
  const mark = () => {
    const jobs = new Set(Array.from(chosen.values()).flat());
    for (const row of rows) row.classList.toggle("best", jobs.has(row.dataset.job));
  };
  for (const block of document.querySelectorAll("[data-chooser]")) {
    const part = (role) => block.querySelector(`[data-role=${role}]`);
    const number = part("number");
    const range = part("range");
    const answer = part("answer");
    const options = Array.from(block.querySelectorAll("[data-epsilon]"));
    const low = Math.log(Math.max(Number(range.dataset.low), 1e-6));
    const high = Math.log(Math.max(Number(range.dataset.high), 2e-6));
    const say = () => {
      const most = Number(number.value);
      const allowed = options.filter((row) => Number(row.dataset.epsilon) <= most);
      const best = allowed[allowed.length - 1];
      chosen.set(block, best ? best.dataset.jobs.split(" ") : []);
      answer.replaceChildren();
      if (!best) {
        answer.textContent = number.value === "" ? "Give an ε." : "No run spends as little as that.";
      } else {
        const text = (name) => best.querySelector(`[data-part=${name}]`).textContent;
        const strong = document.createElement("strong");
        strong.textContent = text("label");
        answer.append(
          strong,
          `: validation ${text("val")}, test ${text("test")} (runs ${text("runs")}, marked below).`,
        );
      }
      mark();
    };
    number.addEventListener("input", () => {
      const at = (Math.log(Math.max(Number(number.value), 1e-6)) - low) / (high - low || 1);
      range.value = String(Math.round(1000 * Math.min(1, Math.max(0, at))));
      say();
    });
    range.addEventListener("input", () => {
      const exact = Math.exp(low + ((high - low) * Number(range.value)) / 1000);
      const scale = 10 ** (3 - Math.floor(Math.log10(exact)));
      // Rounded up, so that either end of the slider allows the run that it stands for.
      number.value = String(Number((Math.ceil(exact * scale - 1e-6) / scale).toPrecision(4)));
      say();
    });
    say();
  }
})();
