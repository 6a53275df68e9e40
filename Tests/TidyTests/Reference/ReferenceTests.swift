import ApusConfiguration
import ApusCore
import ApusNodeConfiguration
import Foundation
import Testing

/// The reference is what the code says, and what documents name exists. With `APUS_REFERENCE=write` in the environment,
/// as `scripts/reference` sets it, the first test writes the documents instead.
@Suite("Tidy: the reference")
struct ReferenceTests {
    private static let isWriting = ProcessInfo.processInfo.environment["APUS_REFERENCE"] == "write"

    @Test("The committed reference is what the code makes", arguments: ReferenceDocument.all)
    func committed(document: ReferenceDocument) throws {
        let made = try document.make()
        let file = "\(SourceTree.root)/\(document.path)"
        if Self.isWriting {
            try FileManager.default.createDirectory(
                atPath: "\(SourceTree.root)/docs/reference", withIntermediateDirectories: true)
            try made.write(toFile: file, atomically: true, encoding: .utf8)
        }
        let found = (try? String(contentsOfFile: file, encoding: .utf8)) ?? ""
        let lines = (made: made.split(separator: "\n"), found: found.split(separator: "\n"))
        let first = zip(lines.made, lines.found).first { $0 != $1 }
        #expect(
            made == found,
            """
            \(document.path) is not what the code makes: run scripts/reference.
            It has \(first?.1 ?? "\(lines.found.count) lines"), the code makes \(first?.0 ?? "\(lines.made.count)")
            """)
    }

    @Test("Every key of the readers stands in the reference file, and none besides")
    func keys() throws {
        let reference = try ConfigurationReference()
        #expect(Set(reference.documented).count == reference.documented.count)
        #expect(Set(reference.documented).subtracting(reference.keys.keys).sorted() == [])
        #expect(Set(reference.keys.keys).subtracting(reference.documented).sorted() == [])
        #expect(reference.keys.count > 150)
        // A standalone relay has a listener for operators by another name, and else keys of a node.
        #expect(Set(reference.relayKeys.keys).subtracting(reference.keys.keys) == ["http"])
    }

    @Test("Every error has an explanation, under the name of its constant")
    func errors() throws {
        #expect(ErrorCode.explanations.map(\.code) == ErrorCode.all)
        let source = try #require(SourceTree.sources.first { $0.path.hasSuffix("ApusCore/ApusError.swift") }).text
        let declared = source.matches(of: /static let (\w+) = Self\(\s*(-?[0-9_]+)/).map { match in
            "\(match.1) \(match.2.filter { $0 != "_" })"
        }
        #expect(declared == ErrorCode.explanations.map { "\($0.name) \($0.code.number)" })
        for explanation in ErrorCode.explanations {
            #expect(!explanation.receivers.isEmpty && explanation.action.hasSuffix("."), "\(explanation.name)")
        }
    }

    // MARK: What documents name

    /// Documents of the present; decisions and benchmarks tell of what was.
    private static let documents = SourceTree.files.filter { file in
        (file.path.hasSuffix(".md") && !file.path.hasPrefix("docs/decisions/") && file.path != "docs/benchmarks.md")
            || file.path.hasPrefix("cluster-configs/")
    }

    @Test("Every metric that a document names exists")
    func namedMetrics() {
        #expect(Self.documents.count > 10)
        let values = ProgramServices.metrics.flatMap(\.metrics).flatMap(\.labels).map(\.values).joined(separator: " ")
        for file in Self.documents {
            for match in file.text.matches(of: /\b(?:apus|process)_[a-z0-9_]+\b/.wordBoundaryKind(.simple)) {
                let name = String(match.0)
                let isLabelValue = values.contains("`\(name)`")
                #expect(MetricNames.isSeries(name) || isLabelValue, "\(file.path) names \(name)")
            }
        }
    }

    @Test("Every key that a document names exists")
    func namedKeys() throws {
        let reference = try ConfigurationReference()
        let known = Set(reference.keys.keys)
        let maps = Set(
            known.compactMap { $0.split(separator: ".").first.map { String($0) } }.filter { !known.contains($0) })
        // A request may have the first word of a key, such as `commands.send`.
        let requests = Set(
            SourceTree.files.filter { $0.path.hasPrefix("Sources/Protocol/ApusContract/API/") }.flatMap { file in
                file.text.matches(of: /ClientRequestInfo\(\s*[0-9]+, "([a-z.]+)"/).map { String($0.1) }
            })
        #expect(requests.contains("commands.send"))
        let files = [".md", ".sqlite", ".yaml", ".replaced", ".pem", ".key", ".service", ".swift"]
        for file in Self.documents where file.path.hasSuffix(".md") {
            for match in file.text.matches(of: /`([a-z_]+(?:\.[a-z0-9_]+)+)`/) {
                let name = String(match.1)
                let first = String(name.split(separator: ".")[0])
                guard maps.contains(first), !files.contains(where: { name.hasSuffix($0) }) else { continue }
                let isMap = known.contains { $0.hasPrefix("\(name).") }
                let isKnown = known.contains(name) || isMap || requests.contains(name)
                #expect(isKnown, "\(file.path) names the key \(name)")
            }
        }
    }

    @Test("Every error number that a document gives in parentheses exists")
    func namedErrors() {
        let known = Set(ErrorCode.all.map(\.number))
        var count = 0
        for file in Self.documents {
            for match in file.text.matches(of: /\(((?:[−-]25\d{2}|8\d{3}|1[02]\d{3}|21\d{3})(?:, [−-]?\d{4,5})*)\)/) {
                for number in match.1.replacing("−", with: "-").split(separator: ", ").compactMap({ Int32($0) }) {
                    count += 1
                    #expect(known.contains(number), "\(file.path) names the error \(number)")
                }
            }
        }
        #expect(count > 20)
    }
}
