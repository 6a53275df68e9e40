import ApusCore
import ApusObjectStore
import ApusTestKit
import Foundation
import Synchronization
import Testing

/// An S3 server of PyPI, or a proxy before one, as a process that ends with this object.
///
/// Concurrency model: one task at a time writes to a proxy.
final class S3Server: Sendable {
    /// A Python that has the servers (scripts/lib/s3-servers.sh); nil where it cannot be had.
    static let python = ProcessInfo.processInfo.environment["APUS_S3_SERVERS"]
    static let bucket = "apus-test"
    static let credentials = "[default]\naws_access_key_id = apus-test\naws_secret_access_key = apus-test-secret\n"

    let port: Int
    private let input: FileHandle
    private let output: FileHandle
    private let process: Mutex<Process>

    static func moto() throws -> S3Server { try S3Server(["moto"]) }
    static func nanio() throws -> S3Server { try S3Server(["nanio"]) }
    static func proxy(of server: S3Server) throws -> S3Server { try S3Server(["proxy"], server.port) }

    private init(_ arguments: [String], _ upstream: Int? = nil) throws {
        let python = try #require(Self.python)
        port = try FreePort.next()
        let script = URL(fileURLWithPath: #filePath).deletingLastPathComponent().path + "/Servers/s3_servers.py"
        let (process, input, output) = (Process(), Pipe(), Pipe())
        process.executableURL = URL(fileURLWithPath: python)
        process.arguments = [script] + arguments + ["\(port)"] + (upstream.map { ["\($0)"] } ?? [])
        process.standardInput = input
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        try process.run()
        (self.input, self.output) = (input.fileHandleForWriting, output.fileHandleForReading)
        self.process = Mutex(process)
        guard line() == "ready" else { throw TestFailure("the server \(arguments) does not start") }
    }

    deinit {
        try? input.close()
        process.withLock { process in
            process.terminate()
            process.waitUntilExit()
        }
    }

    private func line() -> String? {
        var bytes: [UInt8] = []
        while let byte = try? output.read(upToCount: 1)?.first {
            if byte == UInt8(ascii: "\n") { return String(decoding: bytes, as: UTF8.self) }
            bytes.append(byte)
        }
        return nil
    }

    /// Changes the faults of a proxy.
    ///
    /// - Returns: the number of faults so far.
    @discardableResult
    func change(_ faults: String) throws -> Int {
        try input.write(contentsOf: Data((faults + "\n").utf8))
        return try #require(line().flatMap { Int($0) })
    }

    /// The configuration of a client.
    func configuration(_ folder: Folder, prefix: String = "", credentials: String = S3Server.credentials) throws
        -> S3Configuration
    {
        let file = folder.file("credentials-\(UUID().uuidString)")
        try #require(
            FileManager.default.createFile(
                atPath: file, contents: Data(credentials.utf8), attributes: [.posixPermissions: 0o600]))
        var configuration = S3Configuration(bucket: Self.bucket)
        configuration.endpoint = "http://127.0.0.1:\(port)"
        configuration.prefix = prefix
        configuration.credentialsFile = file
        return configuration
    }
}
