/// The bounds of an object store.
package struct ObjectStoreLimits: Sendable, Hashable {
    /// The largest object, in bytes; a larger one is refused with 10002.
    package var objectByteCountMax = 256 << 20
    /// The most bytes of one read.
    package var readByteCountMax = 8 << 20
    /// The most entries of one page of a list.
    package var pageCountMax = 1_000
    /// The most objects in one folder of a directory; a further one is refused with 10007. Processes that share the
    /// directory may exceed it by what they put at the same time.
    package var folderCountMax = 65_536
    /// The most bytes that are written, sent or compared at once. S3: the size of a part of a multipart upload, at
    /// least 5 MiB.
    package var partByteCount = 8 << 20
    /// S3: an object up to this size is sent in one request.
    package var singleByteCountMax = 32 << 20
    /// The operations in progress.
    package var runningMax = 16
    /// The operations that wait for others to end; a further one is refused with 10007.
    package var waitingMax = 256
    /// The time of an operation with its wait and all attempts; it fails with 10005 afterwards.
    package var operationTimeout = Duration.seconds(60)
    /// S3: the time of one request and its answer.
    package var attemptTimeout = Duration.seconds(15)
    /// S3: the attempts of a request whose failure may pass.
    package var attemptsMax = 5
    /// S3: the longest wait after the first failure. The wait is a random part of it, and doubles with each failure.
    package var backoffFirst = Duration.milliseconds(100)
    /// S3: the longest wait between two attempts.
    package var backoffLongest = Duration.seconds(5)
    /// The parts of an ended put that are removed are at least this old.
    package var leftoverAgeMin = Duration.seconds(60)
    /// The leftovers that one call looks at.
    package var leftoverCountMax = 10_000

    package init() {}
}
