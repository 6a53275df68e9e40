import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import SwiftProtobuf

/// The option `--json`, and how every verb prints: a result for people, or one JSON object for programs.
struct OutputOptions: ParsableArguments, Sendable {
    @Flag(help: "Print the result as one JSON object.")
    var json = false

    /// Prints the result: the lines, or with `--json` one object with sorted keys.
    /// - Throws: 10018 if the result cannot be encoded.
    func show(_ result: some Encodable, _ lines: [String]) throws(ApusError) {
        guard json else { return lines.forEach(Console.say) }
        Console.say(try Self.text(result))
    }

    /// Prints an answer of the API in the same way. Its JSON is that of the API (docs/api.md), with sorted keys.
    /// - Throws: 10018 if the answer cannot be encoded.
    func show(_ answer: some Message, _ lines: [String]) throws(ApusError) {
        guard json else { return lines.forEach(Console.say) }
        do {
            let value = try JSONSerialization.jsonObject(with: Data(answer.jsonUTF8Bytes() as [UInt8]))
            let text = try JSONSerialization.data(
                withJSONObject: value, options: [.sortedKeys, .withoutEscapingSlashes])
            Console.say(String(decoding: text, as: UTF8.self))
        } catch {
            throw ApusError(.internalFailure, "the answer cannot be encoded")
        }
    }

    /// Prints a line while the verb works: on standard output, or with `--json` on standard error.
    func progress(_ line: String) {
        if json { Console.warn(line) } else { Console.say(line) }
    }

    /// Encodes a value as one line of JSON with sorted keys.
    /// - Throws: 10018 if it cannot be encoded.
    static func text(_ value: some Encodable) throws(ApusError) -> String {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        do {
            return String(decoding: try encoder.encode(value), as: UTF8.self)
        } catch {
            throw ApusError(.internalFailure, "the result cannot be encoded")
        }
    }
}

/// Prints a list of any length while it is read: a line for each element, or with `--json` one object with an array.
struct ListOutput {
    private let isJSON: Bool
    private var isEmpty = true

    /// - Parameter name: the name of the array in the object.
    init(_ name: String, _ output: OutputOptions) {
        isJSON = output.json
        if isJSON { Console.say(#"{"\#(name)":["#) }
    }

    /// Prints an element.
    /// - Parameter json: the element as JSON.
    mutating func add(_ line: String, json: String) {
        Console.say(isJSON ? (isEmpty ? "" : ",") + json : line)
        isEmpty = false
    }

    /// Ends the list. Is called once, after the last element.
    func end() {
        if isJSON { Console.say("]}") }
    }
}
