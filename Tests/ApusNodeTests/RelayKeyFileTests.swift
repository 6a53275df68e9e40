import ApusCore
import ApusNodeConfiguration
import ApusRelayNode
import ApusRelayService
import ApusTraversal
import Foundation
import Testing

@Suite("The key of a relay that runs alone (D8)")
struct RelayKeyFileTests {
    private func withNode(
        _ keys: String = "", _ body: (RelayNodeConfiguration, _ folder: String) throws -> Void
    ) throws {
        let folder = FileManager.default.temporaryDirectory.appending(path: "apus-key-\(UUID().uuidString)").path
        defer { try? FileManager.default.removeItem(atPath: folder) }
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        try "data_directory: data\nrelay: {\(keys)}\n"
            .write(toFile: "\(folder)/relay.yaml", atomically: true, encoding: .utf8)
        try body(try RelayNodeConfiguration(file: "\(folder)/relay.yaml", environment: [:]), folder)
    }

    @Test("It is made at the start alone, its owner's alone, and stays; commands say that it is missing (10021)")
    func made() throws {
        try withNode { node, folder in
            let reads: [() throws -> Void] = [
                { _ = try node.relayKeys() }, { _ = try node.relayOperatorToken() },
                { _ = try node.relayCredentials() },
            ]
            for read in reads {
                let error = #expect(throws: ApusError.self) { try read() }
                #expect(error?.code == .storageFailed)
                #expect(error?.message.contains("\(folder)/data/relay.key does not exist") == true)
                #expect(!FileManager.default.fileExists(atPath: "\(folder)/data"))
            }
            let made = try node.makeRelayKeys()
            let mode = try FileManager.default.attributesOfItem(atPath: "\(folder)/data/relay.key")[.posixPermissions]
            #expect(mode as? Int == 0o600)
            #expect(try FileManager.default.contentsOfDirectory(atPath: "\(folder)/data") == ["relay.key"])
            #expect(try node.makeRelayKeys().nonceKey == made.nonceKey)
            #expect(try node.relayOperatorToken() == made.operatorToken)
            #expect(try node.relayCredentials().current == made.credentials.current)
        }
    }

    @Test("A static secret needs no key for credentials")
    func secret() throws {
        try withNode("secret: a static secret") { node, folder in
            let credentials = try node.relayCredentials()
            #expect(credentials.current == Array("a static secret".utf8))
            #expect(!FileManager.default.fileExists(atPath: "\(folder)/data"))
        }
    }

    @Test("What is no key is never replaced by one (10021)")
    func damaged() throws {
        try withNode { node, folder in
            try FileManager.default.createDirectory(atPath: "\(folder)/data", withIntermediateDirectories: true)
            #expect(FileManager.default.createFile(atPath: "\(folder)/data/relay.key", contents: Data([1, 2, 3])))
            #expect(throws: ApusError(.storageFailed)) { try node.makeRelayKeys() }
            #expect(FileManager.default.contents(atPath: "\(folder)/data/relay.key") == Data([1, 2, 3]))
        }
    }
}
