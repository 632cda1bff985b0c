'use strict';
const tip = document.getElementById('tip');
const scaled = (value, units, base) => {
  let unit = 0;
  while (value >= base && unit + 1 < units.length) { value /= base; unit += 1; }
  return `${Math.floor(value * 10) / 10} ${units[unit]}`;
};
const bytes = value => scaled(value, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'], 1024);
const time = value => scaled(value, ['ns', 'µs', 'ms', 's'], 1000);
for (const title of document.querySelectorAll('svg title')) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
for (const svg of document.querySelectorAll('svg')) {
  const facts = svg.dataset;
  const [left, width, from, to] = [facts.left, facts.width, facts.from, facts.to].map(Number);
  const points = facts.points.trim().split(' ').map(point => point.split(',').map(Number));
  const reserves = points.some(point => point[2] > 0);
  const cross = svg.querySelector('.cross');
  svg.addEventListener('mousemove', event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const part = (at.x - left) / width;
    const inside = part >= 0 && part <= 1;
    cross.setAttribute('visibility', inside ? 'visible' : 'hidden');
    cross.setAttribute('x1', at.x);
    cross.setAttribute('x2', at.x);
    let text = event.target.dataset.tip;
    if (!text && inside) {
      const now = from + part * (to - from);
      let low = 0, high = points.length;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (points[middle][0] <= now) { low = middle; } else { high = middle; }
      }
      const [, live, reserved] = points[low];
      text = `${time(now)}: ${bytes(live)} in use` + (reserves ? `, ${bytes(reserved)} reserved` : '');
    }
    tip.hidden = !text;
    tip.textContent = text || '';
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  });
  svg.addEventListener('mouseleave', () => {
    tip.hidden = true;
    cross.setAttribute('visibility', 'hidden');
  });
}
