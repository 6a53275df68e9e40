import ApusConsole
import HTTPTypes
import Hummingbird
import NIOCore

/// Serves the console's files. Nothing in them is secret: what a page shows, it asks for with the browser's sign-in.
///
/// Isolation: immutable.
enum ConsoleRoutes {
    /// Nothing of other hosts, no inline script or style, no plug-in, no frame around it.
    private static let policy =
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        + "media-src 'self' blob:; connect-src 'self' ws: wss:; font-src 'self'; manifest-src 'self'; "
        + "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

    /// The answer to a request; nil if no file has its address.
    static func answer(_ request: Request) -> Response? {
        guard request.method == .get, let file = ConsoleFiles.file(at: request.uri.path) else { return nil }
        let tag = "\"\(file.tag)\""
        var headers: HTTPFields = [
            .contentType: file.contentType, .eTag: tag, .cacheControl: "no-cache", .contentSecurityPolicy: policy,
            .xContentTypeOptions: "nosniff", .referrerPolicy: "no-referrer", .openerPolicy: "same-origin",
        ]
        if isModule(file.path) {
            // Any page may embed the player. The files are the same for everybody, and no cookie comes with the
            // request: `*` excludes credentials.
            headers[.accessControlAllowOrigin] = "*"
            headers[.resourcePolicy] = "cross-origin"
        }
        let known = request.headers[values: .ifNoneMatch].contains { $0.contains(tag) }
        guard !known else {
            headers[.contentType] = nil
            return Response(status: .notModified, headers: headers)
        }
        return Response(
            status: .ok, headers: headers, body: ResponseBody(byteBuffer: ByteBuffer(bytes: file.bytes)))
    }

    /// True for `apus.js` and the modules that it imports. The pages of the console are for this origin alone.
    private static func isModule(_ path: String) -> Bool { path == "apus.js" || path.hasPrefix("apus/") }
}

extension HTTPField.Name {
    fileprivate static let resourcePolicy = Self(unchecked: "Cross-Origin-Resource-Policy")
    fileprivate static let referrerPolicy = Self(unchecked: "Referrer-Policy")
    fileprivate static let openerPolicy = Self(unchecked: "Cross-Origin-Opener-Policy")
}
