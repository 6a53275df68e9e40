import ApusNodeConfiguration
import ApusStorage
import Foundation
import Testing

@Suite("The table of deferred effects (docs/authority.md)")
struct AuthorityTableTests {
    /// What the records keep, by collection: a new collection is in the table, or this fails.
    @Test("The table says for everything that is stored what ends it")
    func complete() throws {
        let root = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appending(path: "../..")
        let text = try String(contentsOf: root.appending(path: "docs/authority.md"), encoding: .utf8)
        let rows = text.split(separator: "\n").filter { $0.hasPrefix("| ") }
        var stored: [String: Substring] = [:]
        for row in rows {
            let columns = row.split(separator: "|", omittingEmptySubsequences: false)
            guard columns.count == 7 else { continue }
            for match in columns[5].matches(of: /`([a-z-]+)`/) { stored[String(match.1)] = row }
        }
        let names = Set(ProgramServices.records.collections.map(\.name))
        #expect(names.subtracting(stored.keys).isEmpty, "what ends these?")
        #expect(Set(stored.keys).subtracting(names).isEmpty, "these are not stored any more")
        for (name, row) in stored {
            let end = row.split(separator: "|", omittingEmptySubsequences: false)[3]
            #expect(end.contains(/[a-z]/), "the table does not say what ends \(name)")
        }
    }
}
