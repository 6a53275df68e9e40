package import ApusCore
import ApusTLS
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
        let context: TLSServerContext

        /// Throws 10022 if the files cannot be read or do not match.
        package init(_ files: HTTPCertificateFiles) throws(ApusError) {
            do {
                context = try TLSServerContext(
                    http: TLSIdentity(certificateFile: files.certificate, keyFile: files.key))
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

    var context: TLSServerContext { current.withLock { $0.context } }

    /// Uses another certificate for new connections.
    func use(_ new: Content) { current.withLock { $0 = new } }
}
