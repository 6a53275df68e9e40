package import ApusCore
import ApusGrammar
import Foundation

/// The sentences that an operator adds to those of Apus, or puts in their place (docs/voice.md): a folder in the layout
/// of home-assistant-intents, with a folder for each language.
///
/// Pure value; ``init(folder:replaced:)`` reads files.
package struct UserSentences: Sendable {
    /// The most files of all languages.
    static let filesMax = 512
    /// The bytes of all files.
    static let byteCountMax = 8 << 20
    private static let extensions = [".yaml", ".yml", ".json"]

    /// The sentences of a language with those of the user, compiled.
    let templates: [DialogLanguage: GrammarTemplates]
    /// The sentences of the user in each language.
    package let counts: [String: Int]
    /// The names of intents that dialogs do not have. Their sentences are left out.
    package let unknownIntents: [String]

    /// No sentences of a user.
    package init() { (templates, counts, unknownIntents) = ([:], [:], []) }

    /// Reads and compiles all files. Takes milliseconds for each thousand sentences: not for an event loop.
    ///
    /// - Parameter replaced: languages that have only the user's sentences, and the answers yes, no and cancel.
    /// - Throws: 10022 with the file and the place if a file cannot be read or is not valid, or a bound is passed.
    package init(folder: String, replaced: [String]) throws(ApusError) {
        var sources: [DialogLanguage: GrammarSource] = [:]
        var (fileCount, byteCount) = (0, 0)
        for (language, path) in try Self.files(of: folder) {
            (fileCount, byteCount) = (fileCount + 1, byteCount + Self.byteCount(of: path))
            guard fileCount <= Self.filesMax, byteCount <= Self.byteCountMax else {
                throw Self.error(
                    folder, "at most \(Self.filesMax) files and \(Self.byteCountMax >> 20) MiB are allowed")
            }
            let source = try Self.source(path, language)
            if sources[language] == nil { sources[language] = source } else { sources[language]?.add(source) }
        }
        let replaced = try replaced.map { (tag) throws(ApusError) in try DialogLanguage(checking: tag) }
        var (templates, counts, unknown): ([DialogLanguage: GrammarTemplates], [String: Int], Set<ExactText>)
        (templates, counts, unknown) = ([:], [:], [])
        for (language, source) in sources {
            var source = source
            unknown.formUnion(source.intents.map(\.name).filter { !HassIntents.isKnown($0) }.map { ExactText($0) })
            source.intents.removeAll { !HassIntents.isKnown($0.name) }
            counts[language.grammar.tag] = source.intents.reduce(0) {
                $0 + $1.blocks.reduce(0) { $0 + $1.sentences.count }
            }
            templates[language] = try Self.compiled(source, language, isAlone: replaced.contains(language), folder)
        }
        if let missing = replaced.first(where: { (counts[$0.grammar.tag] ?? 0) == 0 }) {
            throw Self.error(folder, "there are no sentences in \(missing.grammar.tag), which are to replace others")
        }
        (self.templates, self.counts, unknownIntents) = (templates, counts, unknown.sorted().map(\.string))
    }

    // MARK: - Files

    /// `LANGUAGE/FILE.yaml`, and `LANGUAGE.yaml`. Other languages than those of dialogs are left out.
    private static func files(of folder: String) throws(ApusError) -> [(DialogLanguage, String)] {
        func names(_ path: String) throws(ApusError) -> [String] {
            do {
                return try FileManager.default.contentsOfDirectory(atPath: path).filter { !$0.hasPrefix(".") }.sorted()
            } catch {
                throw Self.error(path, "it is not a folder that can be read")
            }
        }
        var found: [(DialogLanguage, String)] = []
        for name in try names(folder) {
            let path = "\(folder)/\(name)"
            let stem = Self.extensions.first(where: name.hasSuffix).map { String(name.dropLast($0.count)) }
            guard let language = try? DialogLanguage(checking: stem ?? name) else { continue }
            if stem != nil {
                found.append((language, path))
            } else {
                let files = try names(path).filter { file in Self.extensions.contains(where: file.hasSuffix) }
                found += files.map { (language, "\(path)/\($0)") }
            }
            // Not more than one too many.
            guard found.count <= Self.filesMax else { return found }
        }
        guard !found.isEmpty else {
            throw Self.error(folder, "it has no file LANGUAGE/NAME.yaml of a language of dialogs (en, zh)")
        }
        return found
    }

    private static func byteCount(of path: String) -> Int {
        let attributes = try? FileManager.default.attributesOfItem(atPath: path)
        return (attributes?[.size] as? NSNumber)?.intValue ?? 0
    }

    private static func source(_ path: String, _ language: DialogLanguage) throws(ApusError) -> GrammarSource {
        guard let data = FileManager.default.contents(atPath: path) else { throw error(path, "it cannot be read") }
        guard data.count <= GrammarLimits.fileByteCountMax else {
            throw error(path, "it has more than \(GrammarLimits.fileByteCountMax >> 20) MiB")
        }
        guard let text = String(validating: data, as: UTF8.self) else { throw error(path, "it is not UTF-8") }
        do throws(ApusError) {
            let source = try GrammarSource(yaml: text)
            guard (try? DialogLanguage(checking: source.language.tag)) == language else {
                throw ApusError(.badParameter, "its language is \(source.language.tag)")
            }
            return source
        } catch {
            throw Self.error(path, error.message)
        }
    }

    private static func compiled(
        _ source: GrammarSource, _ language: DialogLanguage, isAlone: Bool, _ folder: String
    ) throws(ApusError) -> GrammarTemplates {
        var own = try GrammarSource(yaml: VoiceTemplates.yaml(of: language.grammar) ?? "")
        if isAlone { own.intents.removeAll { !Self.answers.contains($0.name) } }
        own.extensions = [source]
        do throws(ApusError) {
            return try GrammarTemplates(
                own, boundLists: VoiceList.allCases.map(\.rawValue) + HassIntents.emptyLists)
        } catch {
            throw Self.error("\(folder) (\(language.grammar.tag))", error.message)
        }
    }

    /// Without these no question could be answered.
    private static let answers = [VoiceIntent.yes, .no, .cancel].map(\.rawValue)

    private static func error(_ path: String, _ reason: String) -> ApusError {
        ApusError(.configurationInvalid, "dialogs.templates: \(path): \(reason)")
    }
}
