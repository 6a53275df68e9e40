import ApusCore

extension HTTPClient {
    /// What all requests of a client have in common.
    package struct Settings: Sendable {
        /// The version of HTTP.
        package enum Version: Sendable {
            /// HTTP/1.1 without TLS. With TLS the server chooses between HTTP/1.1 and HTTP/2.
            case negotiated
            /// HTTP/2, also without TLS, over one connection to one host. The first request opens it, and must be
            /// answered before others are sent. When it is lost, further requests fail with 21022.
            case http2
        }

        package var version = Version.negotiated
        /// A PEM file with the authorities that certificates are checked against; nil for those of the system. Read for
        /// each connection, as the other files are.
        package var authorityFile: String?
        /// A PEM file with the certificate that the client shows, and its chain; nil for none.
        package var certificateFile: String?
        /// A PEM file with the certificate's key, which has no password.
        package var keyFile: String?
        /// The time to resolve the host's name, connect and complete TLS.
        package var connectTimeout = Duration.seconds(5)
        /// Whether the client may connect to an address: its 4 or 16 bytes. A name is resolved once, and each of its
        /// addresses is asked for when it would be connected to, so no second answer of a name server counts. Called
        /// on the client's thread. Nil: all.
        package var mayConnect: (@Sendable ([UInt8]) -> Bool)?
        /// Whether a connection is used for further requests. Otherwise each request has one of its own.
        package var keepsConnections = true
        /// Connections to one host. Further requests wait for one of them.
        package var connectionsPerHostMax = 8
        /// Connections to all hosts together, in use or idle.
        package var connectionsMax = 256
        /// Requests in progress, with those that wait for a connection. A further one fails with 10007.
        package var transfersMax = 1_024
        /// The longest head and trailers together, in bytes.
        package var headByteCountMax = 64 << 10
        /// The bytes of a streamed body that wait for their reader. The last part may exceed it by 16 KiB.
        package var bufferByteCountMax = 256 << 10

        package init() {}
    }

    /// One request.
    package struct Request: Sendable {
        /// In capitals, such as `POST`.
        package var method: String
        /// `http://…` or `https://…`, without a user.
        package var url: String
        package var headers: [HTTPHead.Field] = []
        package var body: [UInt8] = []
        /// The time of the request and its whole answer; nil for no limit.
        package var timeout: Duration?
        /// As ``Settings/connectTimeout``, if it is shorter.
        package var connectTimeout: Duration?
        /// The longest body of the answer, in bytes.
        package var answerByteCountMax = Int.max

        package init(_ method: String, _ url: String) {
            self.method = method
            self.url = url
        }

        /// - Throws: 21031 if the URL or a header cannot be sent as it is.
        func check() throws(ApusError) {
            // Characters that RFC 3986 does not allow are read in different ways by different parsers.
            let other: Set<Character> = ["\"", "<", ">", "\\", "^", "`", "{", "|", "}"]
            let isURL = url.utf8.allSatisfy { (0x21...0x7e).contains($0) } && !url.contains { other.contains($0) }
            guard isURL, url.hasPrefix("http://") || url.hasPrefix("https://") else {
                throw ApusError(.badParameter, "http://… or https://… is expected")
            }
            let isLine = { (text: String) in text.utf8.allSatisfy { $0 >= 0x20 && $0 != 0x7f } }
            guard isLine(method), headers.allSatisfy({ isLine($0.name) && isLine($0.value) && !$0.name.contains(":") })
            else { throw ApusError(.badParameter, "a header has a control character") }
        }
    }

    /// A complete answer.
    package struct Answer: Sendable {
        package var head: HTTPHead
        package var body: [UInt8]
        /// The headers after the body.
        package var trailers: [HTTPHead.Field]
    }
}

/// The head of an answer.
package struct HTTPHead: Sendable, Equatable {
    /// A header.
    package struct Field: Sendable, Equatable {
        /// In lower case, if it was received.
        package var name: String
        package var value: String

        package init(_ name: String, _ value: String) { (self.name, self.value) = (name, value) }
    }

    /// The status code.
    package var status = 0
    /// In the order of the answer.
    package var headers: [Field] = []

    package init() {}
}

extension [HTTPHead.Field] {
    /// The value of the last header of a name in lower case; nil if there is none.
    package subscript(name: String) -> String? { last { $0.name == name }?.value }
}
