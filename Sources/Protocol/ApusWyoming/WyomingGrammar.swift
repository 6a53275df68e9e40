package import ApusCore
import ApusCrypto

/// The sentences that a recognizer may hear, as the `context` of `transcribe` has them. An addition of this project:
///
///     {"apus": {"grammar": HASH, "sentences": ["…", …], "jsgf": "#JSGF V1.0; …"}}
///
/// A home has more sentences than can be listed, since "the", numbers and times of day multiply them. The grammar in
/// the Java Speech Grammar Format has all of them, for recognizers that follow a grammar word by word. The list has the
/// shortest ones, for recognizers that compare a text with each.
///
/// Both may be left out where the provider has received them before. A provider without them answers with the error
/// ``unknownCode``, and the client sends the utterance again, with them. A foreign recognizer ignores the context.
///
/// Pure value.
package struct WyomingGrammar: Sendable, Equatable {
    /// The most sentences.
    package static let sentenceCountMax = 20_000
    /// The most bytes of all sentences, with four bytes more for each, which JSON adds. The data of an event has a
    /// limit too.
    package static let byteCountMax = 700_000
    /// The longest grammar in JSGF, in bytes.
    package static let jsgfByteCountMax = 300_000
    /// The longest sentence, in bytes.
    package static let sentenceByteCountMax = 512
    /// The code of the `error` of a provider that does not have the grammar of this hash.
    package static let unknownCode = "apus-grammar-unknown"
    /// The code of the `error` of a provider that has no room for another utterance.
    package static let busyCode = "apus-busy"

    /// SHA-256 of the sorted sentences with line feeds between them, in hexadecimal digits of lower case. They are
    /// sorted by their bytes. Two line feeds and the grammar in JSGF follow where there is one.
    package let hash: String
    /// Sorted, without duplicates; nil if the provider has them.
    package let sentences: [String]?
    /// All sentences, as a grammar: one public rule, and no recursion. Nil if there is none, or the provider has it.
    package let jsgf: String?

    /// - Throws: 10002 if there are too many sentences or bytes; 10001 if a sentence is empty or has a line feed.
    package init(sentences: [String], jsgf: String? = nil) throws(ApusError) {
        let byteCount = sentences.reduce(0) { $0 + $1.utf8.count + 4 }
        guard sentences.count <= Self.sentenceCountMax, byteCount <= Self.byteCountMax,
            sentences.allSatisfy({ $0.utf8.count <= Self.sentenceByteCountMax })
        else { throw ApusError(.frameTooLarge, "the grammar has too many sentences, or they are too long") }
        guard jsgf?.utf8.count ?? 0 <= Self.jsgfByteCountMax else {
            throw ApusError(.frameTooLarge, "the grammar in JSGF is too long")
        }
        guard !sentences.isEmpty, sentences.allSatisfy({ !$0.isEmpty && !$0.utf8.contains(UInt8(ascii: "\n")) }) else {
            throw ApusError(wyoming: "a grammar has no sentences, or one that is empty or has a line feed")
        }
        var sorted: [ExactText] = []
        for sentence in sentences.map({ ExactText($0) }).sorted() where sentence != sorted.last {
            sorted.append(sentence)
        }
        let texts = sorted.map(\.string)
        let parts = [texts.joined(separator: "\n")] + (jsgf.map { [$0] } ?? [])
        hash = Hexadecimal.text(SHA256.hash(data: Array(parts.joined(separator: "\n\n").utf8)))
        (self.sentences, self.jsgf) = (texts, jsgf)
    }

    private init(hash: String) { (self.hash, sentences, jsgf) = (hash, nil, nil) }

    /// The grammar as it is named to a provider that has its sentences.
    package var withoutSentences: Self { Self(hash: hash) }

    /// - Throws: 10001 if the context has another shape, or the hash is not that of the sentences; 10002 if there are
    ///   too many sentences. Nil if the context has no grammar.
    init?(context: JSONValue?) throws(ApusError) {
        guard let apus = context?["apus"] else { return nil }
        let fields = try WyomingFields(apus)
        guard let hash = try fields.text("grammar") else { return nil }
        guard hash.utf8.count == 64, hash.utf8.allSatisfy({ Self.digits.contains($0) }) else {
            throw ApusError(wyoming: "\"grammar\" is not a hash")
        }
        guard fields["sentences"] != nil else {
            self.init(hash: hash)
            return
        }
        try self.init(
            sentences: try fields.texts("sentences", countMax: Self.sentenceCountMax), jsgf: try fields.text("jsgf"))
        guard self.hash.isExactly(hash) else {
            throw ApusError(wyoming: "\"grammar\" is not the hash of its sentences")
        }
    }

    private static let digits = Set("0123456789abcdef".utf8)

    /// The context of a `transcribe`.
    var context: JSONValue {
        .fields([
            "apus": .fields([
                "grammar": .string(hash), "sentences": sentences.map { .texts($0) }, "jsgf": jsgf.map { .string($0) },
            ])
        ])
    }
}
