import ApusClientAPI
import ApusCore
import HTTPTypes
import Hummingbird
import NIOCore

/// `GET /v1/recordings/{address}/{file}`: files of services, with ranges (RFC 9110 §14). The address is the
/// permission: players have no token.
///
/// A file is read and sent piece by piece. The next piece is read when the client has taken the one before, so a slow
/// client holds one piece in memory. If a piece cannot be read, or the right to the file was lost, the connection ends
/// before the announced length, and the client notices.
///
/// Isolation: immutable; each request is carried out in its own task.
struct DownloadRoutes: Sendable {
    /// What is written at once, in bytes. A client that takes less within `http.request_timeout` is closed.
    private static let writeByteCount = 64 << 10

    private let downloads: any MediaDownloads
    private let configuration: HTTPConfiguration
    private let places: DownloadPlaces

    init(_ downloads: any MediaDownloads, configuration: HTTPConfiguration) {
        (self.downloads, self.configuration) = (downloads, configuration)
        places = DownloadPlaces(
            countMax: configuration.downloads.countMax, accountMax: configuration.downloads.accountMax)
    }

    func add(to router: Router<HTTPContext>) {
        router.get("v1/recordings/{address}/{file}") { request, context in
            do throws(ApusError) {
                return try await answer(request, context)
            } catch {
                return Problem(error).response
            }
        }
    }

    private func answer(_ request: Request, _ context: HTTPContext) async throws(ApusError) -> Response {
        // The address is a secret as a token is.
        try configuration.checkSecrets(context)
        guard let address = context.parameters.get("address"), let file = context.parameters.get("file") else {
            throw ApusError(.targetUnknown, "there is no such path")
        }
        let download = try await downloads.download(file, at: address)
        let tag = download.tag
        var headers: HTTPFields = [
            .eTag: "\"\(tag)\"", .acceptRanges: "bytes", .contentType: download.contentType,
            .cacheControl: download.secondsKept > 0
                ? "private, max-age=\(download.secondsKept), immutable" : "private, no-cache",
        ]
        // An address stands in the list of the pages that a page comes from.
        headers[.referrerPolicy] = "no-referrer"
        headers[.xContentTypeOptions] = "nosniff"
        if let name = download.fileName { headers[.contentDisposition] = "attachment; filename=\"\(name)\"" }
        switch ByteRangeRequest(request.headers, byteCount: download.byteCount, tag: tag) {
        case .unchanged:
            return Response(status: .notModified, headers: headers)
        case .behindEnd:
            var response = Problem(
                ApusError(.badParameter, "the range is behind the end of the file"), .rangeNotSatisfiable
            ).response
            response.headers[.contentRange] = "bytes */\(download.byteCount)"
            return response
        case .whole:
            return Response(
                status: .ok, headers: headers,
                body: body(download, 0..<download.byteCount, try places.take(download.account)))
        case .part(let range):
            headers[.contentRange] = "bytes \(range.lowerBound)-\(range.upperBound - 1)/\(download.byteCount)"
            return Response(
                status: .partialContent, headers: headers,
                body: body(download, range, try places.take(download.account)))
        }
    }

    private func body(_ download: MediaDownload, _ range: Range<Int>, _ lease: DownloadLease) -> ResponseBody {
        let pieceByteCount = configuration.downloads.pieceByteCount
        return ResponseBody(contentLength: range.count) { writer in
            var place = range.lowerBound
            while place < range.upperBound {
                var piece: ByteBuffer
                do throws(ApusError) {
                    piece = try await download.read(place..<min(place + pieceByteCount, range.upperBound))
                    guard piece.readableBytes > 0 else {
                        throw ApusError(.storageFailed, "a file is shorter than was announced")
                    }
                } catch {
                    lease.failed()
                    throw error
                }
                place += piece.readableBytes
                while let slice = piece.readSlice(length: min(Self.writeByteCount, piece.readableBytes)),
                    slice.readableBytes > 0
                {
                    try await writer.write(slice)
                    lease.sent(slice.readableBytes)
                }
            }
            try await writer.finish(nil)
        }
    }
}

extension HTTPField.Name {
    fileprivate static let referrerPolicy = Self(unchecked: "Referrer-Policy")
}
