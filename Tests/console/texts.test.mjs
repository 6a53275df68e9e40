import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";
import { playerTexts, textOf } from "../../Sources/Edges/ApusConsole/files/apus/texts.js";
import { texts } from "../../Sources/Edges/ApusConsole/files/console/texts.js";

const files = new URL("../../Sources/Edges/ApusConsole/files/", import.meta.url);
const sources = folder => readdirSync(new URL(folder, files)).filter(name => name.endsWith(".js")
    && name !== "texts.js")
    .map(name => ({ name, text: readFileSync(new URL(`${folder}${name}`, files), "utf8") }));
const places = text => [...text.matchAll(/\{(\w+)\}/g)].map(match => match[1]).sort();

for (const [name, table, folder, call] of [
    ["the console", texts, "console/", /(?<![\w.])t\("(\w+)"/g], ["the player", playerTexts, "apus/",
        /this\.text\("(\w+)"/g],
]) {
    test(`Each text of ${name} is there in both languages, with the same values`, () => {
        for (const [key, [en, zh, ...more]] of Object.entries(table)) {
            assert.ok(en && zh && more.length === 0, key);
            assert.deepEqual(places(zh), places(en), key);
        }
    });

    test(`Each text that ${name} asks for exists`, () => {
        let count = 0;
        for (const { name: file, text } of sources(folder)) {
            for (const [, key] of text.matchAll(call)) {
                count += 1;
                assert.ok(key in table, `${file} asks for ${key}`);
            }
        }
        assert.ok(count > 5);
    });
}

test("No module makes HTML of text, or runs text as code", () => {
    for (const { name, text } of [...sources("console/"), ...sources("apus/")]) {
        assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc/,
            name);
    }
});

test("A text takes its values, and Chinese for any language that begins with zh", () => {
    assert.equal(textOf({ a: ["{x} of {y}", "{y} 中的 {x}"] }, "a", "en", { x: 1, y: 2 }), "1 of 2");
    assert.equal(textOf({ a: ["{x} of {y}", "{y} 中的 {x}"] }, "a", "zh-Hans", { x: 1, y: 2 }), "2 中的 1");
    assert.equal(textOf({}, "missing", "en"), "missing");
});
