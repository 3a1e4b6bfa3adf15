"use strict";
for (const box of document.querySelectorAll(".frames")) {
  const input = box.querySelector("input"), output = box.querySelector("output");
  const names = JSON.parse(box.dataset.names);
  const show = () => {
    for (const frame of box.querySelectorAll("[data-frame]")) frame.hidden = frame.dataset.frame !== input.value;
    output.textContent = names[input.value];
    input.setAttribute("aria-valuetext", names[input.value]);
  };
  input.addEventListener("input", show);
  box.querySelector(".control").hidden = false;
  show();
}
if (window.innerWidth >= 900) for (const details of document.querySelectorAll("details.wide")) details.open = true;
