import Testing

/// Comments, error texts, log messages and documents use the words of the field (docs/concepts.md).
///
/// Checked are comments and string literals of code, comments of configurations, and documents. Quoted code (between
/// backticks, in fences, or indented by four spaces) is not.
@Suite("Tidy: prose")
struct ProseTests {
    /// A word or phrase, in lower case, and what to write instead.
    static let banned: [(phrase: String, instead: String)] = [
        ("door", "endpoint (an address), listener (a socket)"), ("doors", "endpoints, listeners"),
        ("stranger", "unauthenticated client, peer or source"), ("strangers", "unauthenticated clients"),
        ("tidings", "report, roster"), ("knows of", "has seen"), ("patience", "time-out"),
        ("is told", "is notified, receives"), ("are told", "are notified, receive"), ("was told", "was notified"),
        ("were told", "were notified"), ("been told", "been notified"), ("be told", "be notified"),
        ("this life", "this incarnation"), ("a life of", "an incarnation of"), ("the life of", "the incarnation of"),
        ("another life", "another incarnation"), ("reborn", "restarted"), ("sign of life", "keepalive"),
        ("leave to watch", "permission, grant"), ("let go", "released"), ("lets go", "releases"),
        ("is good at", "is valid at"), ("good at all", "valid at every"), ("good at any", "valid at every"),
        ("breathe", "poll"), ("breathes", "polls"), ("breathed", "polled"), ("breath", "poll"),
        ("goes wrong", "fails; errors and shutdown"), ("what it is given", "its arguments"),
        ("come to rest", "become stable"), ("comes to rest", "becomes stable"), ("came to pass", "happened"),
        ("worked off", "processed"), ("works off", "processes"), ("is dear", "is expensive"),
        ("nobody stands by", "there is no standby"), ("is none of them", "does not count"),
        ("under way", "in progress"), ("in vain", "without a result"), ("anew", "again"), ("told of", "has confirmed"),
        ("takes it for dead", "considers it dead"), ("take it for dead", "consider it dead"),
        ("wants no answer", "has no answer"), ("wants to hear", "subscribes to"), ("hear the events", "subscribe to"),
    ]

    /// The example service (Examples/Doors), its benchmark, and what people say to their homes are about real doors.
    private static let realDoors = [
        "Sources/Command/ApusBench/API/PushBench.swift", "Sources/Command/ApusBench/Local/BenchPrograms.swift",
        "Sources/Command/ApusBench/Upgrade/UpgradeBench.swift", "Sources/Command/ApusBench/Upgrade/UpgradeLoads.swift",
        "Sources/Command/ApusBench/Dialogs/DialogLoad.swift", "Sources/Services/ApusDialogs/Replies/EnglishTexts.swift",
        "Sources/Services/ApusDialogs/Understanding/SentenceReader.swift",
        "Sources/Services/ApusGrammar/Templates/HassIntents.swift", "docs/voice.md",
    ]

    private static let checked = SourceTree.files.filter { file in
        let isChecked =
            file.path.hasPrefix("Sources/") || file.path.hasPrefix("docs/") || file.path.hasPrefix("cluster-configs/")
            || ["README.md", "CONTRIBUTING.md", "SECURITY.md"].contains(file.path)
        return isChecked && !file.isGenerated
    }

    @Test("No comment, message or document uses a private word")
    func bannedPhrases() {
        var checkedCount = 0
        for file in Self.checked {
            for (number, prose) in Self.prose(of: file) {
                let words = prose.lowercased().split { !$0.isLetter }.joined(separator: " ")
                checkedCount += words.isEmpty ? 0 : 1
                let text = " \(words) "
                for (phrase, instead) in Self.banned where text.contains(" \(phrase) ") {
                    let isRealDoor = Self.realDoors.contains(file.path) || prose.contains("Examples/Doors")
                    if isRealDoor, phrase.hasPrefix("door") { continue }
                    Issue.record("\(file.path):\(number) says \"\(phrase)\"; write \(instead)")
                }
            }
        }
        #expect(checkedCount > 5000, "the prose is not found any more")
    }

    /// Words of declared names that have a term in the field.
    private static let bannedInNames = [
        "told": "reported, notified, confirmed", "untold": "unreported", "knock": "the name of the message",
        "knocking": "what it waits for", "stranger": "unauthenticated client", "patience": "timeout",
    ]

    @Test("No declared name has a private word")
    func names() {
        let declaration = /\b(?:func|var|let|case|struct|class|enum|protocol|typealias|actor) ([A-Za-z_]+)/
        var checkedCount = 0
        for file in SourceTree.files where file.isSwift && !file.isGenerated && file.path.hasPrefix("Sources/") {
            checkedCount += file.lines.count
            let text = file.text.lowercased()
            guard Self.bannedInNames.keys.contains(where: text.contains) else { continue }
            for (index, line) in file.lines.enumerated() where !line.drop(while: { $0 == " " }).hasPrefix("//") {
                for match in line.matches(of: declaration) {
                    for word in Self.words(ofName: match.1) {
                        guard let instead = Self.bannedInNames[word] else { continue }
                        Issue.record("\(file.path):\(index + 1) declares \(match.1); write \(instead)")
                    }
                }
            }
        }
        #expect(checkedCount > 50_000, "the sources are not found any more")
        #expect(Self.words(ofName: "isClientEndTold") == ["is", "client", "end", "told"])
    }

    private static func words(ofName name: Substring) -> [String] {
        name.replacing(/[A-Z]+/) { " \($0.output)" }.lowercased().split(separator: " ").map(String.init)
    }

    @Test("Comments and string literals are checked, code and interpolations are not")
    func extraction() {
        #expect(Self.prose(ofCode: "let door = 1  // a listener") == "// a listener")
        #expect(Self.prose(ofCode: #"fail("the link \(door) was lost")"#) == " the link   was lost ")
        #expect(Self.withoutQuotedCode("a `door` and ``Doors/door`` here") == "a   and   here")
        #expect(Self.withoutQuotedCode("see [5](5-door.md).") == "see [5] .")
    }

    /// The lines of a file that hold prose, with their numbers.
    private static func prose(of file: SourceTree.File) -> [(number: Int, text: String)] {
        var isFenced = false
        return file.lines.enumerated().compactMap { index, line in
            let text: String
            if file.path.hasSuffix(".md") {
                if line.hasPrefix("```") { isFenced.toggle() }
                guard !isFenced, !line.hasPrefix("    ") else { return nil }
                text = String(line)
            } else if file.path.hasPrefix("cluster-configs/") {
                text = String(line.drop { $0 != "#" })
            } else {
                text = prose(ofCode: line)
            }
            return text.isEmpty ? nil : (index + 1, withoutQuotedCode(text))
        }
    }

    /// The comment and the string literals of one line of code, without interpolations.
    private static func prose(ofCode line: Substring) -> String {
        var text = ""
        var isString = false
        var depth = 0
        var rest = line
        while let character = rest.first {
            if depth > 0 {
                depth += character == "(" ? 1 : character == ")" ? -1 : 0
                rest = rest.dropFirst()
            } else if isString, rest.hasPrefix("\\(") {
                depth = 1
                text.append(" ")
                rest = rest.dropFirst(2)
            } else if isString, character == "\\" {
                text.append(" ")
                rest = rest.dropFirst(2)
            } else if character == "\"" {
                isString.toggle()
                text.append(" ")
                rest = rest.dropFirst()
            } else if isString {
                text.append(character)
                rest = rest.dropFirst()
            } else if rest.hasPrefix("//") {
                return text + String(rest)
            } else {
                rest = rest.dropFirst()
            }
        }
        return text
    }

    /// Removes code between backticks and the targets of links: a word in them is an identifier.
    private static func withoutQuotedCode(_ text: String) -> String {
        text.replacing(/`+[^`]*`+/, with: " ").replacing(/\]\([^)]*\)/, with: "] ")
    }
}
