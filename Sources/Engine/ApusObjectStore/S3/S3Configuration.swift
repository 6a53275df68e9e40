package import ApusCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A bucket of an S3 server, and how to reach it.
package struct S3Configuration: Sendable, Hashable {
    /// Where a request has the name of the bucket.
    package enum Addressing: String, Sendable, CaseIterable {
        /// `https://server/bucket/name`.
        case path
        /// `https://bucket.server/name`.
        case host
    }

    package var bucket: String
    /// What the keys of all objects begin with, before a `/`; empty for nothing.
    package var prefix = ""
    /// `http://…` or `https://…` with a host and perhaps a port; nil for that of AWS in the region.
    package var endpoint: String?
    package var region = "us-east-1"
    package var addressing = Addressing.path
    /// A file in the form of `~/.aws/credentials`, which only its owner may read; nil for the variables
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    package var credentialsFile: String?
    /// A PEM file with the authorities that the server's certificate is checked against; nil for those of the system.
    package var authorityFile: String?

    package init(bucket: String) { self.bucket = bucket }

    /// A place such as `s3://bucket/prefix`.
    ///
    /// - Throws: 10022 if the text has another form.
    package init(place: String) throws(ApusError) {
        let parts = place.dropFirst("s3://".count).split(separator: "/", maxSplits: 1, omittingEmptySubsequences: false)
        let prefix = parts.count > 1 ? String(parts[1].hasSuffix("/") ? parts[1].dropLast() : parts[1]) : ""
        guard place.hasPrefix("s3://"), let bucket = parts.first, Self.isBucket(String(bucket)),
            prefix.isEmpty || ObjectName(checking: prefix) != nil
        else {
            throw ApusError(.configurationInvalid, "\(place) is not s3://bucket or s3://bucket/prefix")
        }
        self.init(bucket: String(bucket))
        self.prefix = prefix
    }

    /// 3 to 63 lower-case letters, digits, dots and hyphens (the rules of S3 for names of buckets).
    private static func isBucket(_ text: String) -> Bool {
        text.wholeMatch(of: #/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/#) != nil
    }

    /// Where requests go: the start of all URLs, the value of `Host`, and the path before a key.
    ///
    /// - Throws: 10022 if the endpoint is no URL of a server.
    package func target() throws(ApusError) -> (origin: String, host: String, path: String) {
        let text = endpoint ?? "https://s3.\(region).amazonaws.com"
        let match = text.wholeMatch(of: #/(https?):\/\/([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?\/?/#)
        guard let match else {
            throw ApusError(
                .configurationInvalid, "\(text) is not the endpoint of an S3 server, such as https://s3.example.org")
        }
        let isHost = addressing == .host
        let standardPort = match.1 == "https" ? "443" : "80"
        let port = match.3.map { $0 == standardPort ? "" : ":\($0)" } ?? ""
        let host = (isHost ? "\(bucket)." : "") + match.2 + port
        return ("\(match.1)://\(host)", host, isHost ? "" : "/\(bucket)")
    }

    /// Reads the credentials. Blocks.
    ///
    /// - Parameter variable: gives a variable of the environment.
    /// - Throws: 10022 if the keys are missing, or if other users may read the file.
    package func credentials(variable: (String) -> String?) throws(ApusError) -> S3Credentials {
        guard let credentialsFile else {
            guard let id = variable("AWS_ACCESS_KEY_ID"), let secret = variable("AWS_SECRET_ACCESS_KEY") else {
                throw ApusError(
                    .configurationInvalid,
                    "there are no keys for the S3 server: name a file with them, or set AWS_ACCESS_KEY_ID and "
                        + "AWS_SECRET_ACCESS_KEY")
            }
            return S3Credentials(accessKeyID: id, secretKey: secret, sessionToken: variable("AWS_SESSION_TOKEN"))
        }
        return try S3CredentialsFile.read(credentialsFile)
    }
}

/// The file `credentials` of AWS: its section `[default]`, or what precedes all sections.
package enum S3CredentialsFile {
    /// The largest file, in bytes.
    private static let byteCountMax = 64 << 10

    /// - Throws: 10022.
    static func read(_ path: String) throws(ApusError) -> S3Credentials {
        let file = open(path, O_RDONLY | O_CLOEXEC)
        guard file >= 0 else { throw ApusError(.configurationInvalid, FileFailure(path, errno).advice) }
        defer { close(file) }
        var status = stat()
        guard fstat(file, &status) == 0, status.st_mode & 0o077 == 0 else {
            throw ApusError(.configurationInvalid, "others may read the keys in \(path): run chmod 600 \(path)")
        }
        // SAFETY: the kernel writes at most as many bytes as the buffer has.
        let bytes = [UInt8](unsafeUninitializedCapacity: byteCountMax) { buffer, count in
            count = max(0, Glibc.read(file, buffer.baseAddress, byteCountMax))
        }
        guard let credentials = parse(String(decoding: bytes, as: UTF8.self)) else {
            throw ApusError(
                .configurationInvalid, "\(path) has no aws_access_key_id and aws_secret_access_key under [default]")
        }
        return credentials
    }

    /// The keys in a file's text; nil if one is missing.
    package static func parse(_ text: String) -> S3Credentials? {
        var (id, secret, token): (String?, String?, String?)
        var isDefault = true
        for line in text.split(whereSeparator: \.isNewline) {
            let line = line.trimmingPrefix { $0.isWhitespace }
            if line.hasPrefix("[") { isDefault = line.hasPrefix("[default]") }
            guard isDefault, !line.hasPrefix("#"), let sign = line.firstIndex(of: "=") else { continue }
            let name = line[..<sign].filter { !$0.isWhitespace }
            let value = line[line.index(after: sign)...].filter { !$0.isWhitespace }
            switch name {
            case "aws_access_key_id": id = value
            case "aws_secret_access_key": secret = value
            case "aws_session_token": token = value
            default: break
            }
        }
        guard let id, let secret, !id.isEmpty, !secret.isEmpty else { return nil }
        return S3Credentials(accessKeyID: id, secretKey: secret, sessionToken: token)
    }
}
