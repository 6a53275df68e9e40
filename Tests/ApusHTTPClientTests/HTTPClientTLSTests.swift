import ApusCore
import ApusHTTPClient
import ApusTestKit
import Foundation
import Testing

@Suite("Requests over TLS", .serialized, .timeLimit(.minutes(1)), .enabled(if: TestCertificate.canBeMade))
struct HTTPClientTLSTests {
    /// OpenSSL's server, which answers each request with a page.
    private func withServer(
        _ certificate: TestCertificate, _ arguments: [String] = [], _ body: (String) async throws -> Void
    ) async throws {
        let port = try FreePort.next()
        let process = Process()
        process.executableURL = URL(fileURLWithPath: try #require(Tool.openssl))
        let files = ["-cert", certificate.certificate, "-key", certificate.key]
        process.arguments = ["s_server", "-accept", "\(port)", "-www", "-quiet"] + files + arguments
        process.standardInput = FileHandle.nullDevice
        process.standardOutput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        try process.run()
        defer { process.terminate() }
        let client = try HTTPClient(HTTPClient.Settings())
        try await eventually("the server listens") {
            // Not TLS: the server closes the connection.
            let probe = HTTPClient.Request("GET", "http://127.0.0.1:\(port)/")
            return await code { _ = try await client.send(probe) } != .connectFailed
        }
        try await body("https://127.0.0.1:\(port)/")
    }

    private func status(_ url: String, _ change: (inout HTTPClient.Settings) -> Void) async -> Result<Int, ApusError> {
        var settings = HTTPClient.Settings()
        change(&settings)
        do throws(ApusError) {
            let client = try HTTPClient(settings)
            return .success(try await client.send(HTTPClient.Request("GET", url)).head.status)
        } catch {
            return .failure(error)
        }
    }

    @Test("The server's certificate must be of the configured authority, and of this host")
    func authority() async throws {
        let (certificate, other) = (try TestCertificate(), try TestCertificate(addresses: ["127.0.0.2"]))
        try await withServer(certificate) { url in
            #expect(await status(url) { $0.authorityFile = certificate.certificate } == .success(200))
            #expect(await status(url) { $0.authorityFile = other.certificate } == .failure(ApusError(.connectFailed)))
            #expect(await status(url) { _ in } == .failure(ApusError(.connectFailed)))
            let missing = await status(url) { $0.authorityFile = "/missing.pem" }
            #expect(missing == .failure(ApusError(.connectFailed)))
        }
        try await withServer(other) { url in
            #expect(await status(url) { $0.authorityFile = other.certificate } == .failure(ApusError(.connectFailed)))
        }
    }

    @Test("A certificate file that is replaced counts for the next connection")
    func replaced() async throws {
        let (certificate, other) = (try TestCertificate(), try TestCertificate())
        let folder = Folder()
        let file = URL(fileURLWithPath: folder.file("authority"))
        try Data(contentsOf: URL(fileURLWithPath: other.certificate)).write(to: file)
        try await withServer(certificate) { url in
            var settings = HTTPClient.Settings()
            settings.authorityFile = file.path
            let client = try HTTPClient(settings)
            #expect(await code { _ = try await client.send(HTTPClient.Request("GET", url)) } == .connectFailed)
            try Data(contentsOf: URL(fileURLWithPath: certificate.certificate)).write(to: file)
            #expect(try await client.send(HTTPClient.Request("GET", url)).head.status == 200)
        }
    }

    @Test("The client shows its certificate if it has one")
    func clientCertificate() async throws {
        let (certificate, own) = (try TestCertificate(), try TestCertificate(addresses: [], names: ["client.example"]))
        let arguments = ["-Verify", "1", "-verify_return_error", "-CAfile", own.certificate]
        try await withServer(certificate, arguments) { url in
            let shown = await status(url) { settings in
                settings.authorityFile = certificate.certificate
                (settings.certificateFile, settings.keyFile) = (own.certificate, own.key)
            }
            #expect(shown == .success(200))
            let without = await status(url) { $0.authorityFile = certificate.certificate }
            #expect(throws: ApusError.self) { try without.get() }
            let wrongKey = await status(url) { settings in
                settings.authorityFile = certificate.certificate
                (settings.certificateFile, settings.keyFile) = (own.certificate, certificate.key)
            }
            #expect(wrongKey == .failure(ApusError(.connectFailed)))
        }
    }
}
