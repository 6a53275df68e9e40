/// A self-signed certificate for TLS servers of tests. Its files are removed with it.
package final class TestCertificate: Sendable {
    /// True if one can be made here.
    package static let canBeMade = Tool.openssl != nil

    private let folder = Folder()
    /// PEM files.
    package var certificate: String { folder.file("certificate.pem") }
    package var key: String { folder.file("key.pem") }

    /// Makes one with openssl.
    ///
    /// - Parameters:
    ///   - addresses: the addresses that it is for.
    ///   - names: the host names that it is for.
    /// - Throws: ``TestFailure`` where there is no openssl, or it does not make one.
    package init(addresses: [String] = ["127.0.0.1"], names: [String] = []) throws {
        let names = (addresses.map { "IP:\($0)" } + names.map { "DNS:\($0)" }).joined(separator: ",")
        guard let tool = Tool.openssl,
            Tool.run(
                tool,
                [
                    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=test", "-addext", "subjectAltName=\(names)", "-keyout", folder.file("key.pem"),
                    "-out", folder.file("certificate.pem"),
                ]) != nil
        else { throw TestFailure("openssl makes no certificate here") }
    }
}
