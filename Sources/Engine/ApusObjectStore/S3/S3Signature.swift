import ApusCore
import ApusCrypto
import Foundation

/// The keys of an account at an S3 server. They are never logged.
package struct S3Credentials: Sendable, Equatable {
    package var accessKeyID: String
    package var secretKey: String
    /// Of keys that are valid for some hours.
    package var sessionToken: String?

    package init(accessKeyID: String, secretKey: String, sessionToken: String? = nil) {
        self.accessKeyID = accessKeyID
        self.secretKey = secretKey
        self.sessionToken = sessionToken
    }
}

/// AWS Signature Version 4: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html.
///
/// Pure: the time is an argument.
package struct S3Signature: Sendable {
    private static let algorithm = "AWS4-HMAC-SHA256"

    private let credentials: S3Credentials
    private let region: String
    private let service: String

    package init(credentials: S3Credentials, region: String, service: String = "s3") {
        (self.credentials, self.region, self.service) = (credentials, region, service)
    }

    /// A request as it is signed.
    package struct Request: Sendable {
        package var method: String
        /// With `/` at its start, not escaped.
        package var path: String
        /// Not escaped.
        package var query: [(name: String, value: String)]
        /// Lower-case names; all are signed. `host` is one of them.
        package var headers: [(name: String, value: String)]
        /// SHA-256 of the body, in hexadecimal digits.
        package var bodyDigest: String

        package init(
            method: String, path: String, query: [(name: String, value: String)] = [],
            headers: [(name: String, value: String)], bodyDigest: String
        ) {
            self.method = method
            self.path = path
            self.query = query
            self.headers = headers
            self.bodyDigest = bodyDigest
        }
    }

    /// The value of the header `Authorization`.
    ///
    /// - Parameter time: the value of `x-amz-date`, which is one of the headers.
    package func authorization(of request: Request, time: String) -> String {
        let scope = "\(time.prefix(8))/\(region)/\(service)/aws4_request"
        let text = Self.textToSign(Self.canonical(request), time: time, scope: scope)
        let signature = Hexadecimal.text(Self.code(key(day: String(time.prefix(8))), text))
        return "\(Self.algorithm) Credential=\(credentials.accessKeyID)/\(scope), "
            + "SignedHeaders=\(Self.signedNames(request)), Signature=\(signature)"
    }

    /// The key of a day and a region.
    package func key(day: String) -> [UInt8] {
        [region, service, "aws4_request"].reduce(Self.code(Array("AWS4\(credentials.secretKey)".utf8), day)) {
            Self.code($0, $1)
        }
    }

    private static func code(_ key: [UInt8], _ text: String) -> [UInt8] {
        HMAC<SHA256>.authenticationCode(for: Array(text.utf8), using: key)
    }

    static func textToSign(_ canonical: String, time: String, scope: String) -> String {
        let digest = Hexadecimal.text(SHA256.hash(data: Array(canonical.utf8)))
        return "\(algorithm)\n\(time)\n\(scope)\n\(digest)"
    }

    /// The canonical form of a request.
    package static func canonical(_ request: Request) -> String {
        let headers = sorted(request).map { "\($0.name):\(collapsed($0.value))\n" }.joined()
        return [
            request.method, escaped(path: request.path), query(request.query), headers, signedNames(request),
            request.bodyDigest,
        ].joined(separator: "\n")
    }

    private static func sorted(_ request: Request) -> [(name: String, value: String)] {
        request.headers.sorted { $0.name.precedes($1.name) }
    }

    private static func signedNames(_ request: Request) -> String {
        sorted(request).map(\.name).joined(separator: ";")
    }

    /// Without spaces at the ends, and with one where there are several.
    private static func collapsed(_ value: String) -> String {
        value.split(separator: " ").joined(separator: " ")
    }

    /// The query of a URL, in the order of its names.
    static func query(_ query: [(name: String, value: String)]) -> String {
        query.map { "\(escaped($0.name))=\(escaped($0.value))" }.sorted { $0.precedes($1) }.joined(separator: "&")
    }

    /// A path with its slashes.
    static func escaped(path: String) -> String { escaped(path, plainAlso: UInt8(ascii: "/")) }

    /// Escapes all but the unreserved characters (RFC 3986 §2.3).
    static func escaped(_ text: String, plainAlso other: UInt8? = nil) -> String {
        var result: [UInt8] = []
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "-"),
                UInt8(ascii: "~"), other:
                result.append(byte)
            default: result += "%\(Hexadecimal.text([byte]).uppercased())".utf8
            }
        }
        return String(decoding: result, as: UTF8.self)
    }
}
