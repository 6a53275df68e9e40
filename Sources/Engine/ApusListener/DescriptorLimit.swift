#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The process's limit of open files, `RLIMIT_NOFILE`.
package enum DescriptorLimit {
    /// The soft limit: as many descriptors as the process may have open.
    package static var current: Int {
        guard let files = read() else { return 1024 }
        return Int(clamping: files.rlim_cur)
    }

    /// Raises the soft limit to the hard limit, as far as the system allows.
    ///
    /// - Returns: the new soft limit.
    @discardableResult
    package static func raise() -> Int {
        if var files = read(), files.rlim_cur < files.rlim_max {
            files.rlim_cur = files.rlim_max
            // After a refusal the old limit remains and is returned.
            _ = setrlimit(resource, &files)
        }
        return current
    }

    /// The number of open descriptors; nil if the system does not report it.
    ///
    /// Linux 6.2 and later report the number as the size of the directory, which needs no descriptor. On other systems
    /// the directory is read, which needs one.
    package static func inUse() -> Int? {
        var facts = stat()
        if stat("/proc/self/fd", &facts) == 0, facts.st_size > 0 { return Int(facts.st_size) }
        guard let folder = opendir("/proc/self/fd") else { return errno == EMFILE ? current : nil }
        defer { closedir(folder) }
        var count = 0
        while readdir(folder) != nil { count += 1 }
        // Without ".", ".." and the directory itself.
        return max(0, count - 3)
    }

    private static func read() -> rlimit? {
        var files = rlimit()
        return getrlimit(resource, &files) == 0 ? files : nil
    }

    #if canImport(Glibc)
    private static let resource = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
    #else
    private static let resource = CInt(RLIMIT_NOFILE)
    #endif
}
