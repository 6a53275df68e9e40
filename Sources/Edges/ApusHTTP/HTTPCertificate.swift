package import ApusCore
import NIOSSL
import Synchronization

/// The paths of a certificate and its key, in PEM form.
package struct HTTPCertificateFiles: Sendable, Hashable {
    package var certificate: String
    package var key: String

    package init(certificate: String, key: String) { (self.certificate, self.key) = (certificate, key) }
}

/// The certificate of new connections. It can be read again while the listener runs.
///
/// Isolation: any thread.
package final class HTTPCertificate: Sendable {
    private let files: HTTPCertificateFiles
    private let current: Mutex<NIOSSLContext>

    /// Throws 10022 if the files cannot be read or do not match.
    package init(_ files: HTTPCertificateFiles) throws(ApusError) {
        self.files = files
        current = Mutex(try Self.read(files))
    }

    var context: NIOSSLContext { current.withLock { $0 } }

    /// Reads the files again. On failure the certificate does not change, and the error has the reason (10022).
    package func reload() throws(ApusError) {
        let new = try Self.read(files)
        current.withLock { $0 = new }
    }

    private static func read(_ files: HTTPCertificateFiles) throws(ApusError) -> NIOSSLContext {
        do {
            var configuration = TLSConfiguration.makeServerConfiguration(
                certificateChain: try NIOSSLCertificate.fromPEMFile(files.certificate).map { .certificate($0) },
                privateKey: .privateKey(try NIOSSLPrivateKey(file: files.key, format: .pem)))
            configuration.minimumTLSVersion = .tlsv12
            configuration.applicationProtocols = ["http/1.1"]
            return try NIOSSLContext(configuration: configuration)
        } catch {
            throw ApusError(
                .configurationInvalid, "the certificate \(files.certificate) cannot be used for HTTP: \(error)")
        }
    }
}
