package import ApusCore
import NIOSSL
import Synchronization

/// The paths of a certificate and its key, in PEM form.
package struct HTTPCertificateFiles: Sendable, Hashable {
    package var certificate: String
    package var key: String

    package init(certificate: String, key: String) { (self.certificate, self.key) = (certificate, key) }
}

/// The certificate of new connections. It can be replaced while the listener runs.
///
/// Isolation: any thread.
package final class HTTPCertificate: Sendable {
    /// A certificate with its key, read and checked.
    package struct Content: Sendable {
        let context: NIOSSLContext

        /// Throws 10022 if the files cannot be read or do not match.
        package init(_ files: HTTPCertificateFiles) throws(ApusError) {
            do {
                var configuration = TLSConfiguration.makeServerConfiguration(
                    certificateChain: try NIOSSLCertificate.fromPEMFile(files.certificate).map { .certificate($0) },
                    privateKey: .privateKey(try NIOSSLPrivateKey(file: files.key, format: .pem)))
                configuration.minimumTLSVersion = .tlsv12
                configuration.applicationProtocols = ["http/1.1"]
                context = try NIOSSLContext(configuration: configuration)
            } catch {
                throw ApusError(
                    .configurationInvalid,
                    "the certificate \(files.certificate) with the key \(files.key) cannot be used for HTTP: \(error)")
            }
        }
    }

    private let current: Mutex<Content>

    /// Throws 10022 if the files cannot be read or do not match.
    package init(_ files: HTTPCertificateFiles) throws(ApusError) { current = Mutex(try Content(files)) }

    var context: NIOSSLContext { current.withLock { $0.context } }

    /// Uses another certificate for new connections.
    func use(_ new: Content) { current.withLock { $0 = new } }
}
