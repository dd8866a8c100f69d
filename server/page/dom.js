/* Making elements. */

/**
 * Make an element; children may be elements, strings, or null for none.
 *
 * Properties are set as such, but for those that are attributes only: `class`, `role`, `aria-*`.
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** The element of an id that the page is known to have. */
export const byId = (id) => document.getElementById(id);

/** Say something to those who listen to the page. */
export function announce(text) {
  byId("announcer").textContent = text;
}
