import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import SwiftProtobuf
import Synchronization

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
        let parts = JSONText.Parts()
        if let key = JSONText.Parts.key { encoder.userInfo[key] = parts }
        do {
            return parts.inserted(into: String(decoding: try encoder.encode(value), as: UTF8.self))
        } catch {
            throw ApusError(.internalFailure, "the result cannot be encoded")
        }
    }
}

/// A text that is JSON: with `--json` it is a part of the object, with its own numbers, and not a string. An empty text
/// is `null`.
struct JSONText: Encodable {
    /// The texts of one object, and what stands in their places until the object is encoded.
    final class Parts: Sendable {
        fileprivate static let key = CodingUserInfoKey(rawValue: "apus.json")
        private let texts = Mutex<[(place: String, text: String)]>([])

        fileprivate func place(of text: String) -> String {
            let place = UUID().uuidString
            texts.withLock { $0.append((place, text)) }
            return place
        }

        fileprivate func inserted(into json: String) -> String {
            texts.withLock { $0 }.reduce(json) { $0.replacingOccurrences(of: "\"\($1.place)\"", with: $1.text) }
        }
    }

    let text: String

    init(_ text: String) { self.text = text }

    func encode(to encoder: any Encoder) throws {
        var container = encoder.singleValueContainer()
        guard !text.isEmpty else { return try container.encodeNil() }
        let isJSON = (try? JSONSerialization.jsonObject(with: Data(text.utf8), options: .fragmentsAllowed)) != nil
        guard isJSON, let parts = Parts.key.flatMap({ encoder.userInfo[$0] }) as? Parts else {
            return try container.encode(text)
        }
        // A line break is space: in a string it is escaped.
        let line = String(decoding: text.utf8.map { $0 == 0x0a || $0 == 0x0d ? 0x20 : $0 }, as: UTF8.self)
        try container.encode(parts.place(of: line))
    }
}

/// Times as people read them: `2026-11-28T12:00:00Z`, or `-` for none.
enum TimeText {
    /// - Parameter seconds: since 1970.
    static func of(seconds: Int64) -> String { of(Double(seconds)) }

    /// - Parameter milliseconds: since 1970.
    static func of(milliseconds: Int64) -> String { of(Double(milliseconds) / 1000) }

    private static func of(_ seconds: Double) -> String {
        seconds == 0 ? "-" : Date(timeIntervalSince1970: seconds).ISO8601Format()
    }

    /// With milliseconds, for programs.
    static func exact(_ date: Date) -> String {
        date.ISO8601Format(Date.ISO8601FormatStyle(includingFractionalSeconds: true))
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
