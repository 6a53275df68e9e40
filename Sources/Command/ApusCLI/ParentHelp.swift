import ArgumentParser

/// The options that a verb takes from the verb above it, such as `--server` of `apus sessions end`. The parser leaves
/// them out of the verb's help.
enum ParentHelp {
    /// What is added to the help of a verb; empty if it takes no others.
    ///
    /// - Parameters:
    ///   - arguments: those of the command line.
    ///   - help: the help that the parser has made of them; another text is left as it is.
    static func section(for arguments: [String], help: String) -> String {
        guard help.hasPrefix("OVERVIEW: ") else { return "" }
        let chain = verbs(arguments)
        guard chain.count > 1 else { return "" }
        var known = names(of: options(help))
        var sections: [String] = []
        for index in (0..<chain.count - 1).reversed() {
            let missing = options(chain[index].type.helpMessage()).filter { option in
                let name = names(of: [option])
                return !name.isEmpty && known.isDisjoint(with: name)
            }
            known.formUnion(names(of: missing))
            let path = chain[0...index].map(\.name).joined(separator: " ")
            if !missing.isEmpty {
                sections.append("\nOPTIONS OF apus \(path), VALID HERE:\n" + missing.joined(separator: "\n"))
            }
        }
        return sections.joined(separator: "\n")
    }

    private typealias Verb = (name: String, type: any ParsableCommand.Type)

    /// The verbs that the arguments name, from the one below `apus` on.
    private static func verbs(_ arguments: [String]) -> [Verb] {
        var chain: [Verb] = []
        var type: any ParsableCommand.Type = Apus.self
        for word in arguments where !word.hasPrefix("-") {
            guard let next = type.configuration.subcommands.first(where: { $0.configuration.commandName == word })
            else { continue }
            chain.append((word, next))
            type = next
        }
        return chain
    }

    /// The options of a help text, each with the lines that explain it.
    private static func options(_ help: String) -> [String] {
        var options: [String] = []
        var isInside = false
        for line in help.split(separator: "\n", omittingEmptySubsequences: false) {
            if line == "OPTIONS:" {
                isInside = true
            } else if !line.hasPrefix("  ") {
                isInside = false
            } else if isInside, line.hasPrefix("  -") {
                options.append(String(line))
            } else if isInside, let last = options.indices.last {
                options[last] += "\n\(line)"
            }
        }
        return options.filter { !$0.contains("--help") }
    }

    /// `--server` of `  --server <server>  Use …`.
    private static func names(of options: [String]) -> Set<String> {
        Set(
            options.flatMap { option in
                option.split(separator: "\n")[0].split(whereSeparator: { " ,/".contains($0) })
                    .prefix { $0.hasPrefix("-") || $0.hasPrefix("<") }
                    .filter { $0.hasPrefix("--") }.map(String.init)
            })
    }
}
