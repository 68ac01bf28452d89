// Draws boxes, masks and skeletons on a canvas that lies over the picture.
const SHORTEST = 640; // pixels of the canvas's longer side at least: lines and names stay sharp

/** A class's colour, as pictures that the server draws have it: neighbours differ strongly. */
export function colourOf(index) {
  const hue = (0.58 + index * 0.618034) % 1;
  return hsv(hue, [0.72, 0.88, 0.58][index % 3], [0.98, 0.9, 1][Math.floor(index / 3) % 3]);
}

function hsv(hue, saturation, value) {
  const part = (n) => {
    const k = (n + hue * 6) % 6;
    return Math.round(255 * value * (1 - saturation * Math.max(0, Math.min(k, 4 - k, 1))));
  };
  return `rgb(${part(5)} ${part(3)} ${part(1)})`;
}

/** Draw an answer whose places are in pixels of a picture of `width` x `height`. */
export async function drawAnswer(canvas, answer, card, width, height) {
  const mask = answer.mask ? await readMask(answer.mask) : null;
  const scale = Math.max(1, SHORTEST / Math.max(width, height));
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.lineWidth = Math.max(2, Math.max(width, height) / 160);
  pen.font = `600 ${Math.max(11, Math.max(width, height) / 26)}px system-ui, sans-serif`;
  if (mask) drawMask(pen, mask, answer.mask_box);
  answer.predictions.forEach((entry, order) => drawEntry(pen, entry, order, card));
}

async function readMask(base64) {
  const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  return createImageBitmap(new Blob([bytes], { type: "image/png" }));
}

function drawMask(pen, mask, box) {
  pen.globalAlpha = 0.5;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(mask, box.x, box.y, box.width, box.height);
  pen.globalAlpha = 1;
  mask.close();
}

function drawEntry(pen, entry, order, card) {
  const colour = colourOf(entry.keypoints ? order : entry.index ?? order);
  if (entry.keypoints) drawBody(pen, entry.keypoints, card.skeleton ?? [], colour);
  else if (entry.box) drawBox(pen, entry.box, caption(pen, entry), colour);
}

const nameOf = (entry) => String(entry.label ?? entry.index);

/** Name and score; the name alone over a box that is too narrow for both. */
function caption(pen, entry) {
  const whole = `${nameOf(entry)} ${Math.round(100 * entry.score)} %`;
  return pen.measureText(whole).width > 1.2 * entry.box.width ? nameOf(entry) : whole;
}

function drawBox(pen, box, text, colour) {
  pen.strokeStyle = colour;
  pen.strokeRect(box.x, box.y, box.width, box.height);
  const size = parseFloat(pen.font.split(" ")[1]);
  const width = pen.measureText(text).width + size / 2;
  const top = Math.max(0, box.y - size * 1.3);
  const left = Math.max(0, box.x - pen.lineWidth / 2);
  pen.fillStyle = colour;
  pen.fillRect(left, top, width, size * 1.3);
  pen.fillStyle = "#10151c";
  pen.fillText(text, left + size / 4, top + size);
}

const LEAST_SCORE = 0.2; // of a point that is drawn

function drawBody(pen, points, skeleton, colour) {
  const visible = (point) => point && (point.score ?? 1) >= LEAST_SCORE;
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineCap = "round";
  for (const [from, to] of skeleton) {
    if (visible(points[from]) && visible(points[to])) line(pen, points[from], points[to]);
  }
  for (const point of points.filter(visible)) dot(pen, point);
}

function line(pen, from, to) {
  pen.beginPath();
  pen.moveTo(from.x, from.y);
  pen.lineTo(to.x, to.y);
  pen.stroke();
}

function dot(pen, point) {
  pen.beginPath();
  pen.arc(point.x, point.y, pen.lineWidth * 1.5, 0, 2 * Math.PI);
  pen.fill();
}
