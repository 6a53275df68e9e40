import Foundation
import Testing

/// Every input that is kept for a fuzzer, seeds and what once broke a decoder, is fed to its decoder again. A
/// decoder that cannot take one stops the whole run, as it would stop a node.
@Suite("Inputs kept for the fuzzers")
struct CorpusTests {
    struct Decoder: Sendable, CustomTestStringConvertible {
        let name: String
        let fuzz: @Sendable ([UInt8]) -> Void
        var testDescription: String { name }
    }

    static let decoders = [
        Decoder(name: "link", fuzz: fuzzLink),
        Decoder(name: "media", fuzz: fuzzMedia),
        Decoder(name: "track", fuzz: fuzzTrack),
        Decoder(name: "heartbeat", fuzz: fuzzHeartbeat),
        Decoder(name: "ticket", fuzz: fuzzTicket),
        Decoder(name: "claims", fuzz: fuzzClaims),
        Decoder(name: "configuration", fuzz: fuzzConfiguration),
        Decoder(name: "stun", fuzz: fuzzStun),
        Decoder(name: "turn", fuzz: fuzzTurn),
        Decoder(name: "endpoint", fuzz: fuzzEndpoint),
        Decoder(name: "channel", fuzz: fuzzChannel),
        Decoder(name: "messages", fuzz: fuzzMessages),
        Decoder(name: "client", fuzz: fuzzClient),
        Decoder(name: "token", fuzz: fuzzToken),
        Decoder(name: "certificate", fuzz: fuzzCertificate),
        Decoder(name: "zstd", fuzz: fuzzZstd),
        Decoder(name: "tls", fuzz: fuzzTls),
        Decoder(name: "dtls", fuzz: fuzzDtls),
        Decoder(name: "http", fuzz: fuzzHttp),
        Decoder(name: "replica", fuzz: fuzzReplica),
        Decoder(name: "wyoming", fuzz: fuzzWyoming),
        Decoder(name: "evs", fuzz: fuzzEvs),
    ]

    @Test("A decoder takes every input of its corpus, whole and cut at every byte", arguments: decoders)
    func corpus(_ decoder: Decoder) throws {
        let files = try Self.files("Corpus/\(decoder.name)")
        #expect(!files.isEmpty, "there is no seed for \(decoder.name)")
        for file in files {
            let input = try [UInt8](Data(contentsOf: file))
            for count in 0...input.count { decoder.fuzz(Array(input.prefix(count))) }
        }
    }

    @Test("Every folder of the corpus belongs to a decoder")
    func folders() throws {
        #expect(try Self.files("Corpus").map(\.lastPathComponent) == Self.decoders.map(\.name).sorted())
    }

    private static func files(_ folder: String) throws -> [URL] {
        let here = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
        return try FileManager.default.contentsOfDirectory(
            at: here.appendingPathComponent(folder), includingPropertiesForKeys: nil, options: .skipsHiddenFiles
        )
        .sorted { $0.lastPathComponent < $1.lastPathComponent }
    }
}
