import ApusCore
import ApusGrammar

/// The languages that dialogs have sentences and replies for.
///
/// Pure value.
enum DialogLanguage: Sendable, Hashable, CaseIterable {
    case english, chinese

    /// That of a tag such as `en-GB` or `zh-CN`; English for a language that dialogs do not have.
    init(_ tag: String) { self = Self.named(tag) ?? .english }

    /// - Throws: 21031 for a language that dialogs do not have.
    init(checking tag: String) throws(ApusError) {
        guard let known = Self.named(tag) else {
            throw ApusError(.badParameter, "the language is not one of en and zh")
        }
        self = known
    }

    private static func named(_ tag: String) -> Self? {
        switch tag.split(separator: "-").first?.lowercased() {
        case "en": .english
        case "zh": .chinese
        default: nil
        }
    }

    var grammar: GrammarLanguage {
        switch self {
        case .english: .english
        case .chinese: .chinese
        }
    }

    var texts: any DialogTexts {
        switch self {
        case .english: EnglishTexts()
        case .chinese: ChineseTexts()
        }
    }

    /// What people say in answer to a question which one they mean.
    fileprivate var answers: String {
        switch self {
        case .english:
            """
            language: en
            skip_words: [please, um, uh]
            intents:
              Answer:
                data:
                  - sentences:
                      - '[(the|my|our)] {choice} [one]'
                      - '[the] one (in|at|on|from) [the] {choice}'
                      - '(in|at|on) [the] {choice}'
            """
        case .chinese:
            """
            language: zh-CN
            intents:
              Answer:
                data:
                  - sentences:
                      - '[在]{choice}[(的|里的|那个|的那个|里的那个)]'
            """
        }
    }
}

/// The sentences of Apus in each language, compiled once in a process.
///
/// Isolation: immutable; any thread.
enum DialogTemplates {
    private static let sentences = compiled { VoiceTemplates.yaml(of: $0.grammar) ?? "" }
    private static let answers = compiled(boundLists: [answerList]) { $0.answers }

    /// The list of an answer's choices, and its slot.
    static let answerList = "choice"

    /// - Throws: 10018 if a template of the program is wrong.
    static func sentences(of language: DialogLanguage) throws(ApusError) -> GrammarTemplates {
        try found(sentences[language])
    }

    /// - Throws: as ``sentences(of:)``.
    static func answers(of language: DialogLanguage) throws(ApusError) -> GrammarTemplates {
        try found(answers[language])
    }

    private static func found(_ result: Result<GrammarTemplates, ApusError>?) throws(ApusError) -> GrammarTemplates {
        guard let result else { throw ApusError(.internalFailure) }
        return try result.get()
    }

    private static func compiled(
        boundLists: [String] = VoiceList.allCases.map(\.rawValue), _ yaml: (DialogLanguage) -> String
    ) -> [DialogLanguage: Result<GrammarTemplates, ApusError>] {
        var all: [DialogLanguage: Result<GrammarTemplates, ApusError>] = [:]
        for language in DialogLanguage.allCases {
            do throws(ApusError) {
                let source = try GrammarSource(yaml: yaml(language))
                all[language] = .success(try GrammarTemplates(source, boundLists: boundLists))
            } catch {
                all[language] = .failure(error)
            }
        }
        return all
    }
}
