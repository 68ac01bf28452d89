// Draws boxes, masks and skeletons on a canvas that lies over the picture.
import { isolated } from "../format.js";

const LONGEST = 2048; // pixels of the canvas's longer side: some phones draw no larger ones
const WEAK = 0.5; // a box with a lower score has a thinner line

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

/**
 * Draw an answer whose places are in pixels of a picture of `width` x `height`.
 *
 * `longest`: pixels of the longer side on the screen; the canvas needs no more.
 */
export async function drawAnswer(canvas, answer, card, width, height, longest) {
  const mask = answer.mask ? await readMask(answer) : null;
  const scale = Math.min(LONGEST, Math.max(1, longest)) / Math.max(width, height);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.lineWidth = Math.max(2, Math.max(width, height) / 160);
  pen.font = `600 ${Math.max(11, Math.max(width, height) / 26)}px system-ui, sans-serif`;
  if (mask) drawMask(pen, mask, answer.mask_box);
  const marks = answer.predictions.map((entry, order) => ({ entry, colour: colourOfEntry(entry, order) }));
  for (const mark of [...marks].reverse()) drawShape(pen, mark, card); // the best one on top
  const written = [];
  for (const mark of marks) {
    if (mark.entry.box && !mark.entry.keypoints) writeName(pen, mark, written);
  }
}

const colourOfEntry = (entry, order) => colourOf(entry.keypoints ? order : entry.index ?? order);

/** Whether an entry is what a segmentation model calls everything that it did not find. */
export const isBackground = (entry) => entry.share !== undefined && /^_*(background|bg)_*$/i.test(entry.label ?? "");

async function readMask({ mask, predictions }) {
  const bytes = Uint8Array.from(atob(mask), (sign) => sign.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const background = predictions.find(isBackground);
  return background ? without(bitmap, colourOf(background.index)) : bitmap;
}

/** Make one colour of a picture transparent. */
function without(bitmap, colour) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const pen = canvas.getContext("2d");
  pen.drawImage(bitmap, 0, 0);
  bitmap.close();
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height);
  const [red, green, blue] = colour.match(/\d+/g).map(Number);
  const { data } = pixels;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) data[at + 3] = 0;
  }
  pen.putImageData(pixels, 0, 0);
  return canvas.transferToImageBitmap();
}

function drawMask(pen, mask, box) {
  pen.globalAlpha = 0.5;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(mask, box.x, box.y, box.width, box.height);
  pen.globalAlpha = 1;
  mask.close();
}

function drawShape(pen, { entry, colour }, card) {
  if (entry.keypoints) {
    drawBody(pen, entry.keypoints, card.skeleton ?? [], colour);
  } else if (entry.box) {
    const { lineWidth } = pen;
    if (entry.score < WEAK) pen.lineWidth = lineWidth / 2;
    pen.strokeStyle = colour;
    pen.strokeRect(entry.box.x, entry.box.y, entry.box.width, entry.box.height);
    pen.lineWidth = lineWidth;
  }
}

/** Name and score; the name alone over a box that is too narrow for both. */
function caption(pen, entry) {
  const name = isolated(entry.label ?? entry.index);
  const whole = `${name} ${Math.round(100 * entry.score)} %`;
  return pen.measureText(whole).width > 1.2 * entry.box.width ? name : whole;
}

/** Write a box's name over it, where no better one is written; the list has all names. */
function writeName(pen, { entry, colour }, written) {
  const text = caption(pen, entry);
  const size = parseFloat(pen.font.split(" ")[1]);
  const place = {
    left: Math.max(0, entry.box.x - pen.lineWidth / 2),
    top: Math.max(0, entry.box.y - size * 1.3),
    width: pen.measureText(text).width + size / 2,
    height: size * 1.3,
  };
  if (written.some((other) => overlap(place, other))) return;
  written.push(place);
  pen.fillStyle = colour;
  pen.fillRect(place.left, place.top, place.width, place.height);
  pen.fillStyle = "#10151c";
  pen.fillText(text, place.left + size / 4, place.top + size);
}

function overlap(one, other) {
  return one.left < other.left + other.width && other.left < one.left + one.width
    && one.top < other.top + other.height && other.top < one.top + one.height;
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
