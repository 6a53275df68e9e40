import ApusBench
import ApusCLI
import ArgumentParser
import Testing

/// All verbs of the two programs, without a process.
@Suite("Verbs of the programs")
struct VerbTests {
    /// A verb with the words that name it.
    private struct Verb: CustomStringConvertible {
        var words: [String]
        var type: any ParsableCommand.Type
        var description: String { words.joined(separator: " ") }
    }

    private static let roots: [any ParsableCommand.Type] = [ApusProgram.command, BenchProgram.command]

    private static func name(of type: any ParsableCommand.Type) -> String { type.configuration.commandName ?? "" }

    /// A verb, and all below it.
    private static func verbs(_ type: any ParsableCommand.Type, below words: [String] = []) -> [Verb] {
        let own = words + [name(of: type)]
        return [Verb(words: own, type: type)] + type.configuration.subcommands.flatMap { verbs($0, below: own) }
    }

    @Test("Each verb has a name of its own, says what it does, and shows how it is used", arguments: 0..<2)
    func help(program: Int) {
        let root = Self.roots[program]
        let verbs = Self.verbs(root)
        #expect(verbs.count > 20)
        for verb in verbs {
            let siblings = verb.type.configuration.subcommands.map { Self.name(of: $0) }
            #expect(Set(siblings).count == siblings.count && !siblings.contains(""), "below \(verb): \(siblings)")
            #expect(verb.type.configuration.abstract.hasSuffix("."), "\(verb)")
            let help = root.helpMessage(for: verb.type, columns: 100)
            #expect(help.contains("USAGE: \(verb)"), "\(verb): \(help.prefix(200))")
        }
    }

    @Test("An option that a verb does not have is an error of use", arguments: 0..<2)
    func unknownOption(program: Int) {
        let root = Self.roots[program]
        for verb in Self.verbs(root) where verb.type.configuration.subcommands.isEmpty {
            do {
                _ = try root.parseAsRoot(Array(verb.words.dropFirst()) + ["--no-such-option"])
                Issue.record("\(verb) takes any option")
            } catch {
                #expect(root.exitCode(for: error) == .validationFailure, "\(verb): \(error)")
                #expect(!root.message(for: error).isEmpty, "\(verb)")
            }
        }
    }
}
