package import ApusCore
import Foundation

/// The pronunciations of words in the phones of the CMU dictionary: from its file, and otherwise from espeak-ng.
///
/// Isolation: immutable. A look-up reads the whole file, which takes some ten milliseconds.
package struct Pronunciations: Sendable {
    /// The most words that espeak-ng is asked for at once. The others have no pronunciation.
    static let unknownCountMax = 2000
    /// The longest word, in bytes.
    static let wordByteCountMax = 64
    private static let espeakTime = Duration.seconds(5)

    private let dictionary: Data
    private let espeak: String

    /// - Parameters:
    ///   - dictionary: the file, such as cmudict-en-us.dict.
    ///   - espeak: the program espeak-ng.
    /// - Throws: 10021 if the file cannot be read.
    package init(dictionary path: String, espeak: String) throws(ApusError) {
        do {
            dictionary = try Data(contentsOf: URL(fileURLWithPath: path), options: .alwaysMapped)
        } catch {
            throw ApusError(.storageFailed, "the dictionary \(path) cannot be read; install pocketsphinx-en-us")
        }
        self.espeak = espeak
    }

    /// Lines of a dictionary, such as "lamp L AE M P", by their words. A word may have several.
    package func lines(of words: Set<String>) -> [String: [String]] {
        var found: [String: [String]] = [:]
        // SAFETY: the bytes are mapped as long as `dictionary` lives.
        dictionary.withUnsafeBytes { bytes in
            for line in bytes.split(separator: UInt8(ascii: "\n")) {
                guard let end = line.firstIndex(where: { $0 == UInt8(ascii: " ") || $0 == UInt8(ascii: "(") }) else {
                    continue
                }
                let word = String(decoding: line[..<end], as: UTF8.self)
                if words.contains(word) { found[word, default: []].append(String(decoding: line, as: UTF8.self)) }
            }
        }
        let missing = words.filter { found[$0] == nil && $0.utf8.count <= Self.wordByteCountMax }.sorted()
            .prefix(Self.unknownCountMax)
        for (word, phones) in zip(missing, spoken(Array(missing))) {
            if let phones { found[word] = ["\(word) \(phones)"] }
        }
        return found
    }

    /// What espeak-ng makes of words; nil for one that it cannot say in the phones of English.
    private func spoken(_ words: [String]) -> [String?] {
        guard !words.isEmpty else { return [] }
        var output: [UInt8] = []
        let isDone =
            (try? ChildProgram.run(
                espeak, ["-q", "-x", "--sep=_", "-v", "en-us", "--stdin"],
                input: Array(words.joined(separator: "\n").utf8) + [UInt8(ascii: "\n")],
                deadline: .now() + Self.espeakTime, byteCountMax: 1 << 20, receive: { output += $0 })) != nil
        let lines = String(decoding: output, as: UTF8.self).split(separator: "\n")
        // A line that was joined with another one would give words the phones of others.
        guard isDone, lines.count == words.count else { return words.map { _ in nil } }
        return lines.map(Self.phones)
    }

    /// Phones of the CMU dictionary for a word in the notation of espeak-ng; nil if it has others.
    package static func phones(of line: Substring) -> String? {
        var phones: [String] = []
        for name in line.split(whereSeparator: { $0 == "_" || $0 == " " }) {
            // Stress, length that is no other phone, and pauses have no equal.
            let plain = name.drop { "',%=".contains($0) }
            guard !plain.isEmpty, plain != ":", plain != "_:" else { continue }
            guard let equal = Self.equals[String(plain)] ?? Self.equals[String(plain.prefix { !"2#:".contains($0) })]
            else { return nil }
            phones.append(equal)
        }
        return phones.isEmpty ? nil : phones.joined(separator: " ")
    }

    /// espeak-ng's phones of American English (phsource/ph_english_us), and those of names in other languages.
    private static let equals: [String: String] = [
        "a": "AE", "aa": "AE", "A:": "AA", "A": "AA", "0": "AA", "A@": "AA R", "O:": "AO", "O": "AO", "O@": "AO R",
        "o@": "AO R", "o": "OW", "oU": "OW", "E": "EH", "e": "EH", "e@": "EH R", "eI": "EY", "I": "IH", "i": "IY",
        "i:": "IY", "i@": "IY AH", "i@3": "IH R", "I@": "IH R", "aI": "AY", "aI@": "AY AH", "aI3": "AY ER",
        "aU": "AW", "aU@": "AW ER", "OI": "OY", "U": "UH", "u": "UW", "u:": "UW", "U@": "UH R", "V": "AH", "@": "AH",
        "3": "ER", "3:": "ER", "@L": "AH L", "@r": "ER", "y": "UW", "y:": "UW", "Y": "UH",
        "p": "P", "b": "B", "t": "T", "d": "D", "k": "K", "g": "G", "f": "F", "v": "V", "s": "S", "z": "Z", "h": "HH",
        "m": "M", "n": "N", "l": "L", "r": "R", "r-": "R", "w": "W", "j": "Y", "tS": "CH", "dZ": "JH", "S": "SH",
        "Z": "ZH", "T": "TH", "D": "DH", "N": "NG", "n-": "AH N", "m-": "AH M", "x": "K", "C": "HH", "R": "R",
        "l^": "L", "n^": "N Y", "ts": "T S", "?": "T",
    ]
}
