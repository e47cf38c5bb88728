// Counts texts with the npm package tiktoken. Standard input is texts, each the
// length of its UTF-8 (uint32, little endian) and that; standard output is, for
// each text, its tokens in each encoding named on the command line (uint32).
import { get_encoding } from 'tiktoken';

const encodings = process.argv.slice(2).map((name) => get_encoding(name));
let held = Buffer.alloc(0);
for await (const chunk of process.stdin) {
  held = held.length > 0 ? Buffer.concat([held, chunk]) : chunk;
  const counts = [];
  let at = 0;
  while (at + 4 <= held.length) {
    const end = at + 4 + held.readUInt32LE(at);
    if (end > held.length) break;
    const text = held.toString('utf8', at + 4, end);
    for (const encoding of encodings) counts.push(encoding.encode_ordinary(text).length);
    at = end;
  }
  held = held.subarray(at);
  process.stdout.write(Buffer.from(Uint32Array.from(counts).buffer));
}
