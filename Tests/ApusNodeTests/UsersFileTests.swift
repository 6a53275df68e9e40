import ApusCore
import ApusRelayService
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

@Suite("The file of a relay's static users, as operators edit it (D8)")
struct UsersFileTests {
    /// A file in a folder of its own that goes with the value.
    private final class Place {
        let folder = FileManager.default.temporaryDirectory.appending(path: "apus-users-\(UUID().uuidString)").path
        var path: String { "\(folder)/users" }
        var file: UsersFile { UsersFile(path: path, realm: "apus") }

        init() throws { try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true) }
        deinit { try? FileManager.default.removeItem(atPath: folder) }

        func write(_ text: String) throws { try text.write(toFile: path, atomically: false, encoding: .utf8) }
        func text() throws -> String { try String(contentsOfFile: path, encoding: .utf8) }

        func facts(_ path: String) throws -> [FileAttributeKey: Any] {
            try FileManager.default.attributesOfItem(atPath: path)
        }
        func mode() throws -> Int? { try facts(path)[.posixPermissions] as? Int }
    }

    private func line(_ name: String) -> String { "\(name):apus:0x\(String(repeating: "ab", count: 16))" }

    @Test("Users of a file with the line ends of another system are taken out alone", arguments: ["\n", "\r\n"])
    func lineEnds(end: String) throws {
        let place = try Place()
        try place.write(["# cameras", line("first"), line("second"), line("third"), ""].joined(separator: end))
        #expect(try place.file.remove("first"))
        #expect(try place.file.names() == ["second", "third"])
        #expect(try place.file.remove("third"))
        #expect(try place.file.names() == ["second"])
        #expect(try place.file.set("fourth", password: "north"))
        #expect(try place.file.names() == ["fourth", "second"])
        #expect(try place.text().hasPrefix("# cameras\n"))
    }

    @Test("A new file is its owner's alone; of one that is there the group may read on, and nobody else")
    func mode() throws {
        let place = try Place()
        try place.file.set("first", password: "north")
        #expect(try place.mode() == 0o600)
        #expect(chmod(place.path, 0o644) == 0)
        try place.file.set("second", password: "south")
        #expect(try place.mode() == 0o640)
        #expect(try place.file.remove("first"))
        #expect(try place.mode() == 0o640)
    }

    @Test("The file stays its owner's and its group's", .enabled(if: geteuid() == 0, "only root gives files away"))
    func owner() throws {
        let place = try Place()
        try place.file.set("first", password: "north")
        #expect(chown(place.path, 12_345, 12_346) == 0)
        try place.file.set("second", password: "south")
        let facts = try place.facts(place.path)
        #expect(facts[.ownerAccountID] as? Int == 12_345 && facts[.groupOwnerAccountID] as? Int == 12_346)
    }

    @Test("A link goes on to lead to the file")
    func link() throws {
        let place = try Place()
        try place.write(line("first") + "\n")
        let link = "\(place.folder)/link"
        try FileManager.default.createSymbolicLink(atPath: link, withDestinationPath: place.path)
        try UsersFile(path: link, realm: "apus").set("second", password: "south")
        #expect(try place.facts(link)[.type] as? FileAttributeType == .typeSymbolicLink)
        #expect(try place.file.names() == ["first", "second"])
    }
}
