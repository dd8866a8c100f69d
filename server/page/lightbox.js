/* A picture at its full size, over the page. */

import { byId, element } from "./dom.js";

/** Show a picture; a click, Esc or the button closes it. */
export function enlarge(picture, caption) {
  const box = byId("lightbox");
  const image = element("img", { src: picture.url, alt: caption });
  image.addEventListener("click", () => box.close());
  box.querySelector("figure").replaceChildren(image, element("figcaption", {}, caption));
  box.querySelector("a")?.remove();
  box.querySelector("form").prepend(downloadLink(picture));
  box.showModal();
}

/** A link that saves a picture. */
export const downloadLink = ({ url, file }) =>
  element("a", { class: "quiet", href: url, download: file, textContent: "Download" });
